"""Choosing over real HTTP: samples, selectors and their refits, soups of what was chosen, verified or refused."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest

from adaptersoup.client.client import SoupClient
from registry.adapters import create
from registry.adapters.weights import init_hash, save_tensors
from registry.errors import InvalidSample, NotFound, Retired
from registry.samples.embeddings_file import save_embeddings
from registry.spec import Provenance, SampleSource, UniformSpec
from tests.postgres import KINDS
from tests.service.lora_pushes import push_lora
from tests.service.passages import WORDS, passages
from tests.service.servers import CONFIG, Live

DATABASES = KINDS

INIT = Provenance(init_hash="sha256:" + "1" * 64, init_source="declared").model_dump()


@pytest.fixture(scope="module")
def stocked(live: Live) -> Live:
    """Three domains pushed and embedded, and a control without a sample."""
    jobs = []
    for seed, domain in enumerate(WORDS):
        sample = {"texts": passages(domain, 40)}
        pushed = live.world.push(f"acme/{domain}", seed=seed, domain=domain, sample=sample, provenance=INIT)
        jobs.append(pushed["job"])
    live.world.push("acme/control", seed=9, domain="control", provenance=INIT)
    with SoupClient(live.url, live.world.admin) as client:
        for job in jobs:
            assert client.wait_job(job)["state"] == "succeeded"
    return live


def cook(stocked: Live, **body):
    return stocked.world.client.post("/v1/soups", json={"verify": False, "wait": 120, **body})


def sample_of(domain: str) -> dict:
    return {"texts": passages(domain, 30, seed=1)}


def test_samples_are_reported_and_the_control_is_not_selectable(stocked):
    row = stocked.world.client.get("/v1/adapters/acme/kitchen").json()
    assert row["sample_state"] == "ready"
    assert row["sample"]["kept"] == 40
    assert set(row["sample"]["truncated"]) == {"base", "sbert"}
    assert stocked.world.client.get("/v1/adapters/acme/control").json()["sample_state"] == "none"


@pytest.mark.one_database
@pytest.mark.parametrize("spec", [{"kind": "gmm"}, {"kind": "cosine", "encoder": "base"}, {"kind": "posterior"}])
@pytest.mark.parametrize("domain", ["kitchen", "code"])
def test_a_sample_is_recognised_by_every_selector(stocked, spec, domain):
    answer = stocked.world.client.post(
        "/v1/select", json={"sample": sample_of(domain), "selector": spec, "options": {"single": True}, "wait": 120}
    )
    assert answer.status_code == 200, answer.text
    selection = answer.json()["selection"]
    assert [one["domain"] for one in selection["selected"]] == [domain]
    assert {one["domain"] for one in selection["left_out"]} == set(WORDS) - {domain}
    assert all(one["reason"] for one in selection["left_out"])
    assert "control" not in answer.text


@pytest.mark.one_database
def test_the_best_of_those_left_out_are_listed_and_all_on_request(stocked, monkeypatch):
    monkeypatch.setattr("service.http.routes.selectors.LISTED", 1)
    body = {"sample": sample_of("kitchen"), "options": {"single": True}, "wait": 120}
    short, whole = (
        stocked.world.client.post("/v1/select", json={**body, "list_all": every}).json()["selection"]
        for every in (False, True)
    )
    assert short["left_out"] == whole["left_out"][:1]
    assert short["more_left_out"] == {"Only the best match was asked for.": len(WORDS) - 2}
    assert (len(whole["left_out"]), whole["more_left_out"]) == (len(WORDS) - 1, {})


def nearest(stocked: Live, texts, *, headers=None, **body):
    return stocked.world.client.post("/v1/adapters/search", json={"texts": texts, "wait": 120, **body}, headers=headers)


def test_the_nearest_to_one_pasted_text_are_the_adapters_of_its_domain_first(stocked):
    for domain in ("kitchen", "code"):
        answer = nearest(stocked, sample_of(domain)["texts"][:1])
        assert answer.status_code == 200, answer.text
        found = [one["adapter"] for one in answer.json()["data"]]
        assert found[0]["ref"] == f"acme/{domain}@1"
        assert {one["domain"] for one in found} == set(WORDS)
        alike = [one["similarity"] for one in answer.json()["data"]]
        assert alike == sorted(alike, reverse=True)
        assert -1 <= alike[-1] < alike[0] <= 1
        assert "provenance" not in found[0]
    nearer = nearest(stocked, sample_of("kitchen")["texts"], limit=1, encoder="sbert").json()
    assert ([one["adapter"]["domain"] for one in nearer["data"]], nearer["encoder"]) == (["kitchen"], "sbert")
    for wrong in ([], [" "], ["x"] * 501):
        assert nearest(stocked, wrong).status_code in (400, 422)


def test_the_nearest_are_those_that_a_key_reads_and_that_are_live(stocked, client):
    pushed = stocked.world.push("mine/cook", seed=50, domain="mine", sample={"texts": passages("kitchen", 40, seed=5)})
    client.wait_job(pushed["job"])
    texts = sample_of("kitchen")["texts"][:1]
    reader, writer = (
        stocked.world.headers(stocked.world.key(scopes, ["mine"])) for scopes in (["read"], ["read", "write"])
    )
    assert nearest(stocked, texts, headers=reader).status_code == 403  # a fit comes first
    for headers in (writer, reader):
        assert [one["adapter"]["ref"] for one in nearest(stocked, texts, headers=headers).json()["data"]] == [
            "mine/cook@1"
        ]
    assert nearest(stocked, texts, headers=reader, pool={"namespaces": ["acme"]}).status_code == 403
    stocked.world.client.delete("/v1/adapters/mine/cook")
    assert nearest(stocked, texts, headers=reader).json()["data"] == []


@pytest.mark.one_database
def test_quick_weighs_adapters_and_proves_the_soup_on_held_out_passages(stocked):
    sample = sample_of("kitchen")
    answer = cook(stocked, sample=sample, effort="quick", verify=True, name="acme/quick")
    assert answer.status_code == 201, answer.text
    soup = answer.json()
    search, held = soup["search"], sample["texts"][4::5]
    assert {one["domain"] for one in search["candidates"]} == set(WORDS)
    assert (search["decided_on"], search["held_out"]) == (24, 6)
    assert soup["recipe"]["mixing"]["method"] in ("concat", "recompress")
    assert all(set(one["layers"]) == {"layers.0.ffn", "layers.1.ffn"} for one in soup["recipe"]["ingredients"])
    scored = stocked.world.client.post(
        "/v1/perplexity", json={"model": soup["model"], "texts": held, "baseline": "base/tiny"}
    ).json()
    check = soup["verification"]
    assert (check["held_out"], check["helps"], check["passages"]) == (True, True, 6)
    assert scored["baseline"]["difference"] == pytest.approx(check["difference"], abs=1e-4)
    for one in (check, scored["baseline"]):
        assert one["interval"][0] < one["difference"] < one["interval"][1]
    assert any(trial["difference"] == check["difference"] for trial in search["trials"])

    check_rebuilt(stocked, soup)


def check_rebuilt(stocked, soup):
    """The recipe of an answer, posted by hand, is the same soup."""
    ingredients = [
        {"ref": one["digest"], "weight": float(one["weight"]), **{key: one.get(key) for key in ("layers", "statistic")}}
        for one in soup["recipe"]["ingredients"]
    ]
    again = cook(stocked, recipe={"ingredients": ingredients}, mixing=soup["recipe"]["mixing"], max_width=512)
    assert again.json()["digest"] == soup["digest"]
    assert again.json()["recipe_digest"] == soup["recipe_digest"]


@pytest.mark.one_database
def test_thorough_tries_every_way_with_adapters_by_name_and_noise_beside_them(stocked):
    request = {"sample": sample_of("kitchen"), "effort": "thorough", "verify": True, "name": "acme/thorough"}
    answer = cook(stocked, **request, also=["acme/control"], control=True)
    assert answer.status_code == 201, answer.text
    soup = answer.json()
    search = soup["search"]
    assert {one["ref"] for one in search["candidates"]} >= {"acme/control@1"}
    assert all(one["alone"] is not None for one in search["candidates"])
    ways = {trial["way"]: trial for trial in search["trials"]}
    assert {"weighed", "em", "greedy", "selected"} <= ways.keys()
    least = min(trial["difference"] for trial in ways.values())
    check = soup["verification"]
    assert least <= check["difference"] <= least + check["standard_error"] + 1e-9  # a narrow one may take its place
    noise = search["noise"]
    assert noise["difference"] + noise["ahead"] == pytest.approx(check["difference"], abs=1e-4)
    check_rebuilt(stocked, soup)


def test_a_tuned_soup_says_everywhere_that_it_has_learnt_from_the_sample(stocked):
    client, sample = stocked.world.client, sample_of("kitchen")
    answer = cook(stocked, sample=sample, effort="tune", verify=True, name="acme/tuned", tuning={"rate": 0.02})
    assert answer.status_code == 201, answer.text
    soup = answer.json()
    search, tuning = soup["search"], soup["recipe"]["tuning"]
    assert (search["effort"], search["decided_on"], search["held_out"]) == ("tune", 24, 6)
    assert (tuning["rate"], tuning["sample"]) == ("0.02", soup["sample"]["digest"])
    assert soup["soup"]["tuned"]
    assert "learnt from sample" in soup["soup"]["card"]["description"]
    assert client.get("/v1/models/acme/tuned").json()["tuned"]
    assert not client.get("/v1/models/acme/kitchen").json()["tuned"]
    learnt = client.get("/v1/adapters", params={"tuned_on": tuning["sample"]}).json()["data"]
    assert [row["ref"] for row in learnt] == [soup["model"]]

    trials = {one["way"]: one["difference"] for one in search["trials"]}
    assert trials["tuned"] < trials["selected"] < 0
    asked = {"model": soup["model"], "texts": sample["texts"][4::5], "baseline": "base/tiny"}
    scored = client.post("/v1/perplexity", json=asked)
    assert scored.headers["x-soup-tuned"] == "true"
    kept = search["tuning"]["losses"][search["tuning"]["kept"]]
    assert scored.json()["mean_nll"] == pytest.approx(kept, abs=0.01)  # which is of passages cut at the context
    plain = client.post("/v1/perplexity", json={**asked, "model": "acme/kitchen"})
    assert "x-soup-tuned" not in plain.headers

    recipe = {"ingredients": [{"ref": "acme/tuned"}, {"ref": "acme/kitchen"}]}
    mixture = cook(stocked, recipe=recipe, mixing={"method": "concat"}, name="acme/of-tuned").json()
    assert (mixture["soup"]["tuned"], mixture["soup"]["learnt_from"]) == (False, [tuning["sample"]])
    assert client.get("/v1/models/acme/of-tuned").json()["learnt_from"] == [tuning["sample"]]
    assert client.post("/v1/perplexity", json={**asked, "model": "acme/of-tuned"}).headers["x-soup-tuned"] == "true"
    learnt = client.get("/v1/adapters", params={"tuned_on": tuning["sample"]}).json()["data"]
    assert [row["ref"] for row in learnt] == ["acme/of-tuned@1", soup["model"]]

    again = cook(stocked, sample=sample, effort="tune", verify=True, name="acme/tuned", tuning={"rate": 0.02}).json()
    assert (again["cached"], again["digest"], again["verification"]) == (True, soup["digest"], soup["verification"])


@pytest.mark.parametrize("method", ["fisher", "regmean"])
def test_what_a_method_has_to_know_is_computed_once_and_goes_with_its_text(stocked, method):
    client, name = stocked.world.client, f"acme/{method}-law"
    stocked.world.push(name, seed=3, domain="law", sample={"texts": passages("court", 30, seed=5)}, provenance=INIT)
    recipe, mixing = {"ingredients": [{"ref": name, "weight": 2}, {"ref": "acme/kitchen"}]}, {"method": method}
    before = newest_search(stocked)
    answer = cook(stocked, recipe=recipe, mixing=mixing, name=f"acme/{method}")
    assert answer.status_code == 201, answer.text
    soup = answer.json()
    named = [one["statistic"] for one in soup["recipe"]["ingredients"]]
    blobs = stocked.world.registry.blobs
    assert all(map(blobs.is_whole, named))
    assert client.get(f"/v1/blobs/{named[0]}", headers=key_of(stocked, "read")).status_code == 404
    check_rebuilt(stocked, soup)
    assert newest_search(stocked) != before  # no plain cook waits behind it
    average = cook(stocked, recipe=recipe).json()
    assert average["digest"] != soup["digest"]
    asked = {"model": soup["model"], "texts": passages("court", 5, seed=6), "baseline": average["soup"]["ref"]}
    assert client.post("/v1/perplexity", json=asked).json()["mean_nll"] > 0

    refused = cook(stocked, recipe={"ingredients": [{"ref": name}, {"ref": "acme/control"}]}, mixing=mixing)
    assert refused.status_code == 422
    assert "acme/control@1 has no sample whose text is kept" in refused.json()["error"]["message"]

    assert client.get(f"/v1/adapters/acme/{method}/lineage").json()["rebuildable"]
    purged = client.post(f"/v1/adapters/{name}@1/purge").json()
    assert f"acme/{method}@1" in purged["not_rebuildable"]
    assert sum(map(blobs.has, named)) == 1  # what is known of the other ingredient
    assert not client.get(f"/v1/adapters/acme/{method}/lineage").json()["rebuildable"]
    assert client.post("/v1/perplexity", json={**asked, "baseline": None}).status_code == 200


@pytest.mark.one_database
def test_loras_are_mixed_by_what_their_modules_read(stocked):
    client, names = stocked.world.client, ["acme/lora-law", "acme/lora-tax"]
    for seed, name in enumerate(names):
        push_lora(stocked.world, name, seed=seed, sample={"texts": passages("court", 25, seed=seed)})
    recipe = {"ingredients": [{"ref": names[0], "weight": 2}, {"ref": names[1]}]}
    by_inputs = {"method": "recompress", "by_inputs": True, "width": 2}
    answer = cook(stocked, recipe=recipe, mixing=by_inputs)
    assert answer.status_code == 201, answer.text
    soup = answer.json()
    assert all(map(stocked.world.registry.blobs.is_whole, [one["statistic"] for one in soup["recipe"]["ingredients"]]))
    check_rebuilt(stocked, soup)
    plain = cook(stocked, recipe=recipe, mixing={"method": "recompress", "width": 2}).json()
    assert plain["digest"] != soup["digest"]
    asked = {"model": soup["model"], "texts": passages("court", 3, seed=6)}
    assert client.post("/v1/perplexity", json=asked).json()["mean_nll"] > 0
    for name in names:
        assert client.post(f"/v1/adapters/{name}@1/purge").status_code == 200


@pytest.mark.one_database
def test_what_was_learnt_is_added_to_the_start_that_a_seed_draws(stocked):
    client = stocked.world.client
    start = create(CONFIG, stocked.world.runtime.bases["tiny"].shape, seed=4, init="linear").state_dict()
    given = {"init_hash": init_hash(start), "init_source": "declared", "init_seed": 4}
    for seed, name in ((40, "acme/learnt-law"), (41, "acme/learnt-tax")):  # nobody else has these
        stocked.world.push(name, seed=seed, provenance=given)
    recipe = {"ingredients": [{"ref": "acme/learnt-law", "weight": 2}, {"ref": "acme/learnt-tax"}]}
    answer = cook(stocked, recipe=recipe, mixing={"method": "task_arithmetic", "scale": 0.5})
    assert answer.status_code == 201, answer.text
    soup = answer.json()
    assert soup["recipe"]["mixing"] == {"method": "task_arithmetic", "scale": "0.5", "init": "linear", "init_seed": 4}
    check_rebuilt(stocked, soup)
    assert cook(stocked, recipe=recipe).json()["digest"] != soup["digest"]
    asked = {"model": soup["model"], "texts": passages("court", 3, seed=6)}
    assert client.post("/v1/perplexity", json=asked).json()["mean_nll"] > 0
    refused = cook(stocked, recipe=recipe, mixing={"method": "task_arithmetic", "init_seed": 5})
    assert refused.status_code == 422


def newest_search(stocked) -> list[str]:
    """The id of the newest job of that kind, if there is one."""
    with stocked.world.runtime.database.read() as catalogue:
        return [job.id for job in catalogue.jobs.list(None, kind="search", limit=1).rows]


def key_of(stocked, scope: str) -> dict[str, str]:
    return stocked.world.headers(stocked.world.key([scope], ["acme"]))


@pytest.mark.one_database
def test_where_tuning_is_the_default_a_request_need_not_ask_for_it(stocked):
    client = stocked.world.client
    assert client.patch("/v1/namespaces/eager", json={"tuning": "default"}).status_code == 200
    soup = cook(stocked, sample=sample_of("kitchen"), verify=True, name="eager/soup").json()
    assert soup["search"]["effort"] == "tune"
    assert soup["reason"].endswith("Effort 'tune' is the default of namespace 'eager'.")
    with stocked.world.runtime.database.read() as catalogue:
        (job,) = catalogue.jobs.list(("eager",), kind="search", limit=2).rows
    assert job.arguments["effort"] == "tune"  # settled when it was asked for, whatever the settings become


def test_a_soup_is_cooked_once_and_served_like_any_adapter(stocked):
    body = {"sample": sample_of("kitchen"), "selector": {"kind": "uniform"}}
    first = cook(stocked, **body)
    assert first.status_code == 201, first.text
    soup = first.json()
    assert not soup["abstained"]
    assert soup["soup"]["kind"] == "soup"
    assert soup["model"].startswith("default/soup-" + soup["digest"][7:19])
    assert [one["weight"] for one in soup["recipe"]["ingredients"]] == ["0.333333334", "0.333333333", "0.333333333"]
    assert soup["recipe"]["ingredients"] == sorted(soup["recipe"]["ingredients"], key=lambda one: one["digest"])

    again = cook(stocked, **body)
    assert again.status_code == 200
    assert again.json()["cached"]
    assert again.json()["digest"] == soup["digest"]
    assert again.json()["model"] == soup["model"]

    scored = stocked.world.client.post(
        "/v1/perplexity",
        json={"model": soup["model"], "texts": passages("kitchen", 3, seed=5), "baseline": "base/tiny"},
    ).json()
    assert scored["perplexity"] > 1
    assert scored["digest"] == soup["digest"]
    openai = stocked.openai()
    told = openai.completions.create(model=soup["model"], prompt="Heat the", max_tokens=4, temperature=0)
    assert told.model == soup["model"]
    assert told.system_fingerprint == soup["digest"]


@pytest.mark.one_database
def test_verify_abstains_where_the_soup_does_not_help(stocked):
    """An adapter whose up-projection is zero changes nothing, so it cannot beat the base."""
    runtime = stocked.world.runtime
    nothing = save_tensors(create(CONFIG, runtime.bases["tiny"].shape, seed=0, init="zero_up").state_dict())
    files = {"adapter_model.safetensors": {"base64": base64.b64encode(nothing).decode()}}
    stocked.world.push("acme/nothing", domain="nothing", files=files)
    recipe = {"ingredients": [{"ref": "acme/nothing"}]}
    answer = cook(stocked, sample=sample_of("kitchen"), recipe=recipe, verify=True, name="acme/never")
    assert answer.status_code == 200
    soup = answer.json()
    assert soup["abstained"]
    assert soup["model"] == "base/tiny"
    assert soup["soup"] is None
    assert soup["verification"]["soup_nll"] == soup["verification"]["base_nll"]
    assert not soup["verification"]["helps"]
    assert "does not beat the base" in soup["reason"]
    assert stocked.world.client.get("/v1/adapters/acme/never").status_code == 404


@pytest.mark.one_database
def test_verify_needs_text(stocked):
    encoder = next(one for one in stocked.world.runtime.bases["tiny"].encoders().values() if one.name == "base")
    data = save_embeddings(encoder.encode(passages("code", 30, seed=2)).vectors)
    vectors = {"encoder": encoder.digest, "unit": "passage", "file": {"base64": base64.b64encode(data).decode()}}
    refused = cook(stocked, sample={"embeddings": [vectors]}, verify=True)
    assert refused.status_code == 422
    assert "needs the sample's text" in refused.json()["error"]["message"]
    cooked = cook(stocked, sample={"embeddings": [vectors]}, options={"single": True}).json()
    assert cooked["model"] == "acme/code@1"
    assert not cooked["sample"]["has_text"]
    other = cook(stocked, sample={"embeddings": [vectors]}, selector={"kind": "cosine"})
    assert other.status_code == 422
    assert "vectors of encoder 'sbert'" in other.json()["error"]["message"]


def test_adapters_of_other_initialisations_are_refused_with_all_reasons(stocked):
    stocked.world.push("acme/stranger", seed=20, domain="stranger")
    recipe = {"ingredients": [{"ref": "acme/kitchen"}, {"ref": "acme/stranger"}]}
    answer = cook(stocked, recipe=recipe, mixing={"method": "average"})
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["code"] == "incompatible"
    assert "acme/stranger@1 is unknown" in error["message"]
    assert "assume_same_init" in error["message"]
    vouched = cook(stocked, recipe=recipe, mixing={"method": "average", "assume_same_init": True}).json()
    assert vouched["recipe"]["mixing"]["assume_same_init"]
    assert vouched["soup"]["card"]["metadata"]["assume_same_init"]
    assert vouched["soup"]["provenance"]["init_source"] == "unknown"


@pytest.mark.one_database
@pytest.mark.parametrize("path", ["/v1/select", "/v1/adapters/search"])
def test_a_wait_that_is_too_long_is_refused_where_there_is_nothing_to_wait_for(stocked, path):
    asked = {"texts": sample_of("kitchen")["texts"], "encoder": "base"}
    if path == "/v1/select":
        asked = {"sample": sample_of("kitchen"), "selector": {"kind": "cosine", "encoder": "base"}}
    assert stocked.world.client.post(path, json={**asked, "wait": 120}).status_code == 200
    refused = stocked.world.client.post(path, json={**asked, "wait": 1e6})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "wait")


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("body", "error", "sentence"),
    [
        ({"sample": {"texts": ["one", "two"]}}, InvalidSample, "2 different sequences"),
        ({"recipe": {"ingredients": [{"ref": "acme/nobody"}]}}, NotFound, "acme/nobody"),
        ({"recipe": {"ingredients": [{"ref": "acme/kitchen", "weight": 0}]}}, None, "Every weight"),
        ({"sample": {"texts": []}, "recipe": None, "wait": 1e6}, None, "at most"),
        ({}, None, "Give a 'sample'"),
    ],
)
def test_bad_requests_are_one_clear_sentence(stocked, body, error, sentence):
    answer = cook(stocked, **body)
    assert 400 <= answer.status_code < 500
    assert sentence in answer.json()["error"]["message"]
    if error is not None:
        assert answer.json()["error"]["code"] == error.code


def test_a_retired_ingredient_is_gone_by_name_and_its_soups_stay(stocked, client):
    stocked.world.push("acme/passing", seed=30, domain="passing", provenance=INIT)
    soup = cook(stocked, recipe={"ingredients": [{"ref": "acme/kitchen"}, {"ref": "acme/passing"}]}).json()
    assert stocked.world.client.delete("/v1/adapters/acme/passing").status_code == 200
    gone = stocked.world.client.get("/v1/adapters/acme/passing")
    assert gone.status_code == 410
    assert gone.json()["error"]["code"] == Retired.code
    scored = stocked.world.client.post("/v1/perplexity", json={"model": soup["model"], "texts": ["still here"]})
    assert scored.status_code == 200
    parents = stocked.world.client.get(f"/v1/adapters/{soup['model']}/lineage").json()["parents"]
    assert {p["ref"]: p["retired"] for p in parents} == {"acme/kitchen@1": False, "acme/passing@1": True}
    assert cook(stocked, recipe={"ingredients": [{"ref": "acme/passing"}]}).status_code == 410


def test_the_old_selector_serves_while_a_new_adapter_waits_for_its_refit(stocked, client):
    before = stocked.world.client.post(
        "/v1/selectors", json={"selector": {"kind": "gmm", "seed": 5}, "wait": 120}
    ).json()
    pushed = stocked.world.push(
        "acme/later", seed=40, domain="later", provenance=INIT, sample={"texts": passages("court", 40, seed=8)}
    )
    refits = client.wait_job(pushed["job"])["result"]["refits"]
    assert refits
    seen = stocked.world.client.get(f"/v1/selectors/{before['id']}").json()
    assert seen["not_yet_included"] == ["acme/later@1"]
    for job in refits:
        assert client.wait_job(job)["state"] == "succeeded"
    after = stocked.world.client.post(
        "/v1/select", json={"sample": sample_of("kitchen"), "selector": {"kind": "gmm", "seed": 5}}
    ).json()
    assert after["selector"] != before["id"]
    assert after["not_yet_included"] == []


def nobody_asks_for(stocked, selector: dict) -> None:
    """Nobody asked for this selector in a year."""
    database = stocked.world.runtime.services.registry.database
    with database.write() as catalogue:
        row = catalogue.selectors.get(None, selector["id"])
        catalogue.selectors.record_request(row.pool_id, row.spec_digest, datetime.now(UTC) - timedelta(days=365))


def test_an_idle_selector_is_refitted_when_it_is_asked_for(stocked, client):
    spec = {"kind": "uniform"}
    before = stocked.world.client.post("/v1/selectors", json={"selector": spec, "wait": 120}).json()
    assert (before["idle"], before["asked_at"] >= before["fitted_at"]) == (False, True)
    nobody_asks_for(stocked, before)
    pushed = stocked.world.push(
        "acme/late", seed=41, domain="late", provenance=INIT, sample={"texts": passages("court", 40, seed=9)}
    )
    refits = [client.wait_job(job) for job in client.wait_job(pushed["job"])["result"]["refits"]]
    assert refits
    assert before["id"] in {one["id"] for one in stocked.world.client.get("/v1/selectors").json()["data"]}
    seen = stocked.world.client.get(f"/v1/selectors/{before['id']}").json()
    assert (seen["idle"], seen["not_yet_included"]) == (True, ["acme/late@1"])

    reader = stocked.world.headers(stocked.world.key(["read"]))  # the pool was fitted before: no right to fit is needed
    body = {"sample": sample_of("kitchen"), "selector": spec, "pool": {"namespaces": ["acme"]}, "wait": 120}
    never = stocked.world.client.post("/v1/select", json=body, headers=reader)
    assert never.status_code == 403
    answer = stocked.world.client.post("/v1/select", json={**body, "pool": {}}).json()
    assert answer["selector"] != before["id"]
    assert answer["not_yet_included"] == []
    assert "late" in {one["domain"] for one in answer["selection"]["selected"]}
    after = stocked.world.client.get(f"/v1/selectors/{answer['selector']}").json()
    assert (after["idle"], seen["asked_at"] < after["asked_at"]) == (False, True)
    old = stocked.world.client.get(f"/v1/selectors/{before['id']}").json()
    assert (old["idle"], old["asked_at"]) == (False, None)


def test_a_key_that_only_reads_has_an_idle_selector_refitted(stocked, client):
    reader = stocked.world.key(["read"])
    spec, pool = {"kind": "uniform"}, {"namespaces": ["acme"]}
    fit = {"selector": spec, "pool": pool, "wait": 120}
    nobody_asks_for(stocked, stocked.world.client.post("/v1/selectors", json=fit).json())
    stocked.world.client.delete("/v1/adapters/acme/late")
    with SoupClient(stocked.url, reader) as asking:
        answer = asking.select(SampleSource(**sample_of("kitchen")), selector=UniformSpec())
    assert answer["not_yet_included"] == []
    assert "late" not in {one["domain"] for one in answer["selection"]["selected"]}


def test_a_cook_has_an_idle_selector_refitted(stocked, client):
    spec = {"kind": "cosine", "encoder": "base", "seed": 77}
    before = stocked.world.client.post("/v1/selectors", json={"selector": spec, "wait": 120}).json()
    nobody_asks_for(stocked, before)
    pushed = stocked.world.push(
        "acme/latest", seed=42, domain="latest", provenance=INIT, sample={"texts": passages("court", 40, seed=10)}
    )
    for refit in client.wait_job(pushed["job"])["result"]["refits"]:
        client.wait_job(refit)
    soup = cook(stocked, sample=sample_of("kitchen"), selector=spec, name="acme/asked", options={"when_none": "top"})
    assert soup.json()["not_yet_included"] == []
    assert soup.json()["selector"] != before["id"]
    after = stocked.world.client.get(f"/v1/selectors/{soup.json()['selector']}").json()
    assert (after["idle"], after["asked_at"] > before["asked_at"]) == (False, True)


@pytest.mark.one_database
def test_a_client_learns_what_to_embed_with_from_the_base_model(stocked):
    card = stocked.world.client.get("/v1/models/tiny").json()
    known = stocked.world.runtime.bases["tiny"].encoders()
    assert card["fingerprint"] == stocked.world.runtime.bases["tiny"].shape.fingerprint
    assert card["architecture"] == {
        "model_type": "gpt2", "layers": 2, "hidden_size": 32, "key_value_heads": 2, "head_size": 16,
    }  # fmt: skip
    assert {one["digest"]: (one["name"], one["unit"], one["dimensions"]) for one in card["encoders"]} == {
        digest: (one.name, one.unit, one.dimensions) for digest, one in known.items()
    }
    assert stocked.world.client.get("/v1/models/acme/kitchen").json()["encoders"] is None


@pytest.mark.one_database
def test_selections_beyond_what_is_embedded_at_once_are_429(stocked):
    runtime = stocked.world.runtime
    body = {"sample": sample_of("kitchen"), "selector": {"kind": "cosine", "encoder": "base"}, "wait": 120}
    held = 0
    while runtime.services.selections.acquire(blocking=False):
        held += 1
    try:
        refused = stocked.world.client.post("/v1/select", json=body)
    finally:
        runtime.services.selections.release(held)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "2"
    assert stocked.world.client.post("/v1/select", json=body).status_code == 200


def test_a_key_that_only_reads_selects_but_never_starts_a_fit(stocked):
    reader = stocked.world.headers(stocked.world.key(["read"]))
    fitted = {"sample": sample_of("kitchen"), "selector": {"kind": "cosine", "encoder": "base"}, "wait": 120}
    assert stocked.world.client.post("/v1/select", json=fitted).status_code == 200
    assert stocked.world.client.post("/v1/select", json=fitted, headers=reader).status_code == 200
    jobs = [job["id"] for job in stocked.world.client.get("/v1/jobs?kind=fit").json()["data"]]
    never = {**fitted, "selector": {"kind": "gmm", "seed": 12345}}
    refused = stocked.world.client.post("/v1/select", json=never, headers=reader)
    assert refused.status_code == 403
    assert "never fitted" in refused.json()["error"]["message"]
    assert [job["id"] for job in stocked.world.client.get("/v1/jobs?kind=fit").json()["data"]] == jobs
