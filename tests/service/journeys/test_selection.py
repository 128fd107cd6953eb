"""Choosing over real HTTP: samples, selectors and their refits, soups of what was chosen, verified or refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from registry.errors import Retired
from tests.postgres import KINDS
from tests.service.answers import answered, refusal
from tests.service.cluster import ended
from tests.service.passages import WORDS, passages
from tests.service.servers import DECLARED, Live

DATABASES = KINDS
KEPT = 20
"""Passages of each sample: as few as are taken."""


@pytest.fixture(scope="module")
def stocked(live: Live) -> Live:
    """Three domains pushed and embedded, and a control without a sample."""
    pushed = [
        live.world.push(
            f"acme/{domain}", seed=seed, domain=domain, provenance=DECLARED, sample={"texts": passages(domain, KEPT)}
        )
        for seed, domain in enumerate(WORDS)
    ]
    live.world.push("acme/control", seed=9, domain="control", provenance=DECLARED)
    for adapter in pushed:
        assert ended(live.world.client, adapter["job"])["state"] == "succeeded"
    return live


@pytest.fixture(scope="module")
def http(stocked):
    """Requests with the admin key."""
    return stocked.world.client


def cook(stocked: Live, **body):
    return stocked.world.client.post("/v1/soups", json={"verify": False, "wait": 120, **body})


def cooked(stocked: Live, status: int = 201, **body) -> dict:
    return answered(cook(stocked, **body), status)


def select(stocked: Live, headers=None, **body):
    return stocked.world.client.post("/v1/select", json={"wait": 120, **body}, headers=headers)


def selected(stocked: Live, **body) -> dict:
    return answered(select(stocked, **body))


def fitted(stocked: Live, spec: dict, **body) -> dict:
    return stocked.world.client.post("/v1/selectors", json={"selector": spec, "wait": 120, **body}).json()


def sample_of(domain: str) -> dict:
    return {"texts": passages(domain, 30, seed=1)}


@pytest.mark.one_database
@pytest.mark.parametrize("spec", [{"kind": "gmm"}, {"kind": "cosine", "encoder": "base"}, {"kind": "posterior"}])
@pytest.mark.parametrize("domain", ["kitchen", "code"])
def test_a_sample_is_recognised_by_every_selector(stocked, spec, domain):
    selection = selected(stocked, sample=sample_of(domain), selector=spec, options={"single": True})["selection"]
    assert [adapter["domain"] for adapter in selection["selected"]] == [domain]
    assert {adapter["domain"] for adapter in selection["left_out"]} == set(WORDS) - {domain}
    assert all(adapter["reason"] for adapter in selection["left_out"])
    assert "control" not in str(selection)


@pytest.mark.one_database
def test_the_best_of_those_left_out_are_listed_and_all_on_request(stocked, monkeypatch):
    monkeypatch.setattr("service.http.routes.selectors.LISTED", 1)
    body = {"sample": sample_of("kitchen"), "options": {"single": True}}
    short, whole = (selected(stocked, **body, list_all=list_all)["selection"] for list_all in (False, True))
    assert short["left_out"] == whole["left_out"][:1]
    assert short["more_left_out"] == {"Only the best match was asked for.": len(WORDS) - 2}
    assert (len(whole["left_out"]), whole["more_left_out"]) == (len(WORDS) - 1, {})


def nearest(stocked: Live, texts, *, headers=None, **body):
    return stocked.world.client.post("/v1/adapters/search", json={"texts": texts, "wait": 120, **body}, headers=headers)


@pytest.mark.one_database
def test_the_nearest_to_one_pasted_text_are_the_adapters_of_its_domain_first(stocked):
    for domain in ("kitchen", "code"):
        answer = answered(nearest(stocked, sample_of(domain)["texts"][:1]))
        adapters = [neighbour["adapter"] for neighbour in answer["data"]]
        assert adapters[0]["ref"] == f"acme/{domain}@1"
        assert {adapter["domain"] for adapter in adapters} == set(WORDS)
        alike = [neighbour["similarity"] for neighbour in answer["data"]]
        assert alike == sorted(alike, reverse=True)
        assert -1 <= alike[-1] < alike[0] <= 1
        assert "provenance" not in adapters[0]
    nearer = nearest(stocked, sample_of("kitchen")["texts"], limit=1, encoder="sbert").json()
    assert ([neighbour["adapter"]["domain"] for neighbour in nearer["data"]], nearer["encoder"]) == (
        ["kitchen"],
        "sbert",
    )
    for wrong in ([], [" "], ["x"] * 501):
        assert nearest(stocked, wrong).status_code in (400, 422)


@pytest.mark.one_database
def test_the_nearest_are_those_that_a_key_reads_and_that_are_live(stocked, client):
    pushed = stocked.world.push(
        "mine/cook", seed=50, domain="mine", sample={"texts": passages("kitchen", KEPT, seed=5)}
    )
    client.wait_job(pushed["job"])
    texts = sample_of("kitchen")["texts"][:1]
    reader, writer = (
        stocked.world.headers(stocked.world.key(scopes, ["mine"])) for scopes in (["read"], ["read", "write"])
    )
    assert nearest(stocked, texts, headers=reader).status_code == 403  # a fit comes first
    for headers in (writer, reader):
        assert [
            neighbour["adapter"]["ref"] for neighbour in nearest(stocked, texts, headers=headers).json()["data"]
        ] == ["mine/cook@1"]
    assert nearest(stocked, texts, headers=reader, pool={"namespaces": ["acme"]}).status_code == 403
    stocked.world.client.delete("/v1/adapters/mine/cook")
    assert nearest(stocked, texts, headers=reader).json()["data"] == []


@pytest.mark.one_database
def test_quick_weighs_adapters_and_proves_the_soup_on_held_out_passages(stocked, http):
    sample = sample_of("kitchen")
    soup = cooked(stocked, sample=sample, effort="quick", verify=True, name="acme/quick")
    search, held_out = soup["search"], sample["texts"][4::5]
    assert {candidate["domain"] for candidate in search["candidates"]} == set(WORDS)
    assert (search["decided_on"], search["held_out"]) == (24, 6)
    assert soup["recipe"]["mixing"]["method"] in ("concat", "recompress")
    assert all(
        set(ingredient["layers"]) == {"layers.0.ffn", "layers.1.ffn"} for ingredient in soup["recipe"]["ingredients"]
    )
    scored = http.post(
        "/v1/perplexity", json={"model": soup["model"], "texts": held_out, "baseline": "base/tiny"}
    ).json()
    check = soup["verification"]
    assert (check["held_out"], check["helps"], check["passages"]) == (True, True, 6)
    assert scored["baseline"]["difference"] == pytest.approx(check["difference"], abs=1e-4)
    for comparison in (check, scored["baseline"]):
        assert comparison["interval"][0] < comparison["difference"] < comparison["interval"][1]
    assert any(trial["difference"] == check["difference"] for trial in search["trials"])

    check_rebuilt(stocked, soup)


def check_rebuilt(stocked, soup):
    """The recipe of an answer, posted by hand, is the same soup."""
    ingredients = [
        {
            "ref": ingredient["digest"],
            "weight": float(ingredient["weight"]),
            **{key: ingredient.get(key) for key in ("layers", "statistic")},
        }
        for ingredient in soup["recipe"]["ingredients"]
    ]
    rebuilt = cook(stocked, recipe={"ingredients": ingredients}, mixing=soup["recipe"]["mixing"], max_width=512).json()
    assert (rebuilt["digest"], rebuilt["recipe_digest"]) == (soup["digest"], soup["recipe_digest"])


@pytest.mark.one_database
def test_a_tuned_soup_says_everywhere_that_it_has_learnt_from_the_sample(stocked, http):
    sample = sample_of("kitchen")
    request = {"sample": sample, "effort": "tune", "verify": True, "name": "acme/tuned", "tuning": {"rate": 0.02}}
    soup = cooked(stocked, **request)
    search, tuning = soup["search"], soup["recipe"]["tuning"]
    assert (search["effort"], search["decided_on"], search["held_out"]) == ("tune", 30, 6)
    assert (tuning["rate"], tuning["sample"]) == ("0.02", soup["sample"]["digest"])
    assert soup["soup"]["tuned"]
    assert "learnt from sample" in soup["soup"]["card"]["description"]
    assert [http.get(f"/v1/models/acme/{name}").json()["tuned"] for name in ("tuned", "kitchen")] == [True, False]

    def learnt() -> list[str]:
        return [row["ref"] for row in http.get("/v1/adapters", params={"tuned_on": tuning["sample"]}).json()["data"]]

    def scored(model: str):
        body = {"model": model, "texts": sample["texts"][4::5], "baseline": "base/tiny"}
        return http.post("/v1/perplexity", json=body)

    assert learnt() == [soup["model"]]
    trials = {trial["way"]: trial["difference"] for trial in search["trials"]}
    assert trials["tuned"] < trials["selected"] < 0
    answer = scored(soup["model"])
    assert answer.json()["mean_nll"] < search["tuning"]["losses"][0]
    assert answer.headers["x-soup-tuned"] == "true"
    assert "x-soup-tuned" not in scored("acme/kitchen").headers

    recipe = {"ingredients": [{"ref": "acme/tuned"}, {"ref": "acme/kitchen"}]}
    mixture = cooked(stocked, recipe=recipe, mixing={"method": "concat"}, name="acme/of-tuned")
    assert (mixture["soup"]["tuned"], mixture["soup"]["learnt_from"]) == (False, [tuning["sample"]])
    assert http.get("/v1/models/acme/of-tuned").json()["learnt_from"] == [tuning["sample"]]
    assert scored("acme/of-tuned").headers["x-soup-tuned"] == "true"
    assert learnt() == ["acme/of-tuned@1", soup["model"]]

    cached = cooked(stocked, 200, **request)
    assert (cached["cached"], cached["digest"], cached["verification"]) == (True, soup["digest"], soup["verification"])


@pytest.mark.one_database
def test_what_a_method_has_to_know_is_computed_once_and_goes_with_its_text(stocked, http):
    name, blobs = "acme/fisher-law", stocked.world.registry.blobs
    stocked.world.push(name, seed=3, domain="law", sample={"texts": passages("court", 30, seed=5)}, provenance=DECLARED)
    recipe, mixing = {"ingredients": [{"ref": name, "weight": 2}, {"ref": "acme/kitchen"}]}, {"method": "fisher"}
    previous_search = newest_search(stocked)
    soup = cooked(stocked, recipe=recipe, mixing=mixing, name="acme/fisher")
    assert newest_search(stocked) != previous_search  # no plain cook waits behind it
    named = [ingredient["statistic"] for ingredient in soup["recipe"]["ingredients"]]
    assert all(map(blobs.is_whole, named))
    reader = stocked.world.headers(stocked.world.key(["read"], ["acme"]))
    assert http.get(f"/v1/blobs/{named[0]}", headers=reader).status_code == 404
    check_rebuilt(stocked, soup)
    average = cook(stocked, recipe=recipe).json()
    assert average["digest"] != soup["digest"]
    assert mean_nll(stocked, soup, baseline=average["soup"]["ref"]) > 0


def mean_nll(stocked, soup: dict, **more) -> float:
    body = {"model": soup["model"], "texts": passages("court", 3, seed=6), **more}
    return answered(stocked.world.client.post("/v1/perplexity", json=body))["mean_nll"]


def newest_search(stocked) -> list[str]:
    """The id of the newest job of that kind, if there is one."""
    with stocked.world.runtime.database.read() as catalogue:
        return [job.id for job in catalogue.jobs.list(None, kind="search", limit=1).rows]


@pytest.mark.one_database
@pytest.mark.parametrize("path", ["/v1/select", "/v1/adapters/search"])
def test_a_wait_that_is_too_long_is_refused_where_there_is_nothing_to_wait_for(stocked, path):
    body = {"texts": sample_of("kitchen")["texts"], "encoder": "base"}
    if path == "/v1/select":
        body = {"sample": sample_of("kitchen"), "selector": {"kind": "cosine", "encoder": "base"}}
    assert stocked.world.client.post(path, json={**body, "wait": 120}).status_code == 200
    refused = stocked.world.client.post(path, json={**body, "wait": 1e6})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "wait")


def test_a_retired_ingredient_is_gone_by_name_and_its_soups_stay(stocked, http):
    stocked.world.push("acme/passing", seed=30, domain="passing", provenance=DECLARED)
    soup = cook(stocked, recipe={"ingredients": [{"ref": "acme/kitchen"}, {"ref": "acme/passing"}]}).json()
    assert http.delete("/v1/adapters/acme/passing").status_code == 200
    gone = http.get("/v1/adapters/acme/passing")
    assert (gone.status_code, gone.json()["error"]["code"]) == (410, Retired.code)
    assert mean_nll(stocked, soup) > 0
    parents = http.get(f"/v1/adapters/{soup['model']}/lineage").json()["parents"]
    assert {p["ref"]: p["retired"] for p in parents} == {"acme/kitchen@1": False, "acme/passing@1": True}
    assert cook(stocked, recipe={"ingredients": [{"ref": "acme/passing"}]}).status_code == 410


def push_late(stocked, client, name: str, seed: int) -> list[dict]:
    """Push another adapter of the court; the refits that come of it, once they are over."""
    sample = {"texts": passages("court", KEPT, seed=seed)}
    pushed = stocked.world.push(f"acme/{name}", seed=seed, domain=name, provenance=DECLARED, sample=sample)
    return [client.wait_job(job) for job in client.wait_job(pushed["job"])["result"]["refits"]]


def nobody_asks_for(stocked, selector: dict) -> None:
    """Nobody asked for this selector in a year."""
    database = stocked.world.runtime.services.registry.database
    with database.write() as catalogue:
        row = catalogue.selectors.get(None, selector["id"])
        catalogue.selectors.record_request(row.pool_id, row.spec_digest, datetime.now(UTC) - timedelta(days=365))


@pytest.mark.one_database
def test_an_idle_selector_is_refitted_when_it_is_asked_for(stocked, http, client):
    fitted(stocked, {"kind": "cosine", "encoder": "base"})  # this one is asked for, and refitted
    spec = {"kind": "uniform"}
    selector = fitted(stocked, spec)
    assert (selector["idle"], selector["asked_at"] >= selector["fitted_at"]) == (False, True)
    nobody_asks_for(stocked, selector)
    assert push_late(stocked, client, "late", 41)
    assert selector["id"] in {row["id"] for row in http.get("/v1/selectors").json()["data"]}
    idle_selector = http.get(f"/v1/selectors/{selector['id']}").json()
    assert (idle_selector["idle"], idle_selector["not_yet_included"]) == (True, ["acme/late@1"])

    reader = stocked.world.headers(stocked.world.key(["read"]))  # the pool was fitted before: no right to fit is needed
    body = {"sample": sample_of("kitchen"), "selector": spec}
    assert select(stocked, headers=reader, **body, pool={"namespaces": ["acme"]}).status_code == 403
    answer = selected(stocked, **body, pool={})
    assert answer["selector"] != selector["id"]
    assert answer["not_yet_included"] == []
    assert "late" in {adapter["domain"] for adapter in answer["selection"]["selected"]}
    after, old = (
        http.get(f"/v1/selectors/{selector_id}").json() for selector_id in (answer["selector"], selector["id"])
    )
    assert (after["idle"], idle_selector["asked_at"] < after["asked_at"]) == (False, True)
    assert (old["idle"], old["asked_at"]) == (False, None)


@pytest.mark.one_database
def test_a_cook_has_an_idle_selector_refitted(stocked, http, client):
    spec = {"kind": "cosine", "encoder": "base", "seed": 77}
    selector = fitted(stocked, spec)
    nobody_asks_for(stocked, selector)
    push_late(stocked, client, "latest", 42)
    request = {"sample": sample_of("kitchen"), "selector": spec, "name": "acme/asked", "options": {"when_none": "top"}}
    soup = cook(stocked, **request).json()
    assert soup["not_yet_included"] == []
    assert soup["selector"] != selector["id"]
    after = http.get(f"/v1/selectors/{soup['selector']}").json()
    assert (after["idle"], after["asked_at"] > selector["asked_at"]) == (False, True)


@pytest.mark.one_database
def test_a_client_learns_what_to_embed_with_from_the_base_model(stocked, http):
    card, base = http.get("/v1/models/tiny").json(), stocked.world.runtime.bases["tiny"]
    assert card["fingerprint"] == base.shape.fingerprint
    assert card["architecture"] == {
        "model_type": "gpt2",
        "layers": 2,
        "hidden_size": 32,
        "key_value_heads": 2,
        "head_size": 16,
    }
    assert {
        encoder["digest"]: (encoder["name"], encoder["unit"], encoder["dimensions"]) for encoder in card["encoders"]
    } == {digest: (encoder.name, encoder.unit, encoder.dimensions) for digest, encoder in base.encoders().items()}
    assert http.get("/v1/models/acme/kitchen").json()["encoders"] is None


@pytest.mark.one_database
def test_selections_beyond_what_is_embedded_at_once_are_429(stocked):
    body = {"sample": sample_of("kitchen"), "selector": {"kind": "cosine", "encoder": "base"}}
    turns, acquired = stocked.world.runtime.services.selections, 0
    while turns.acquire(blocking=False):
        acquired += 1
    try:
        refused = select(stocked, **body)
    finally:
        turns.release(acquired)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert selected(stocked, **body)


@pytest.mark.one_database
def test_a_key_that_only_reads_selects_but_never_starts_a_fit(stocked, http):
    reader = stocked.world.headers(stocked.world.key(["read"]))
    body = {"sample": sample_of("kitchen"), "selector": {"kind": "cosine", "encoder": "base"}}
    assert selected(stocked, **body)
    assert selected(stocked, **body, headers=reader)

    def fits() -> list[str]:
        return [job["id"] for job in http.get("/v1/jobs?kind=fit").json()["data"]]

    fits_before = fits()
    refused = select(stocked, headers=reader, **{**body, "selector": {"kind": "gmm", "seed": 12345}})
    assert "has no fit of this selector" in refusal(refused, 403)
    assert fits() == fits_before
