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
    for one in pushed:
        assert ended(live.world.client, one["job"])["state"] == "succeeded"
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
    assert [one["domain"] for one in selection["selected"]] == [domain]
    assert {one["domain"] for one in selection["left_out"]} == set(WORDS) - {domain}
    assert all(one["reason"] for one in selection["left_out"])
    assert "control" not in str(selection)


@pytest.mark.one_database
def test_the_best_of_those_left_out_are_listed_and_all_on_request(stocked, monkeypatch):
    monkeypatch.setattr("service.http.routes.selectors.LISTED", 1)
    body = {"sample": sample_of("kitchen"), "options": {"single": True}}
    short, whole = (selected(stocked, **body, list_all=every)["selection"] for every in (False, True))
    assert short["left_out"] == whole["left_out"][:1]
    assert short["more_left_out"] == {"Only the best match was asked for.": len(WORDS) - 2}
    assert (len(whole["left_out"]), whole["more_left_out"]) == (len(WORDS) - 1, {})


def nearest(stocked: Live, texts, *, headers=None, **body):
    return stocked.world.client.post("/v1/adapters/search", json={"texts": texts, "wait": 120, **body}, headers=headers)


@pytest.mark.one_database
def test_the_nearest_to_one_pasted_text_are_the_adapters_of_its_domain_first(stocked):
    for domain in ("kitchen", "code"):
        answer = answered(nearest(stocked, sample_of(domain)["texts"][:1]))
        found = [one["adapter"] for one in answer["data"]]
        assert found[0]["ref"] == f"acme/{domain}@1"
        assert {one["domain"] for one in found} == set(WORDS)
        alike = [one["similarity"] for one in answer["data"]]
        assert alike == sorted(alike, reverse=True)
        assert -1 <= alike[-1] < alike[0] <= 1
        assert "provenance" not in found[0]
    nearer = nearest(stocked, sample_of("kitchen")["texts"], limit=1, encoder="sbert").json()
    assert ([one["adapter"]["domain"] for one in nearer["data"]], nearer["encoder"]) == (["kitchen"], "sbert")
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
        assert [one["adapter"]["ref"] for one in nearest(stocked, texts, headers=headers).json()["data"]] == [
            "mine/cook@1"
        ]
    assert nearest(stocked, texts, headers=reader, pool={"namespaces": ["acme"]}).status_code == 403
    stocked.world.client.delete("/v1/adapters/mine/cook")
    assert nearest(stocked, texts, headers=reader).json()["data"] == []


@pytest.mark.one_database
def test_quick_weighs_adapters_and_proves_the_soup_on_held_out_passages(stocked, http):
    sample = sample_of("kitchen")
    soup = cooked(stocked, sample=sample, effort="quick", verify=True, name="acme/quick")
    search, held = soup["search"], sample["texts"][4::5]
    assert {one["domain"] for one in search["candidates"]} == set(WORDS)
    assert (search["decided_on"], search["held_out"]) == (24, 6)
    assert soup["recipe"]["mixing"]["method"] in ("concat", "recompress")
    assert all(set(one["layers"]) == {"layers.0.ffn", "layers.1.ffn"} for one in soup["recipe"]["ingredients"])
    scored = http.post("/v1/perplexity", json={"model": soup["model"], "texts": held, "baseline": "base/tiny"}).json()
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
    again = cook(stocked, recipe={"ingredients": ingredients}, mixing=soup["recipe"]["mixing"], max_width=512).json()
    assert (again["digest"], again["recipe_digest"]) == (soup["digest"], soup["recipe_digest"])


@pytest.mark.one_database
def test_a_tuned_soup_says_everywhere_that_it_has_learnt_from_the_sample(stocked, http):
    sample = sample_of("kitchen")
    asked = {"sample": sample, "effort": "tune", "verify": True, "name": "acme/tuned", "tuning": {"rate": 0.02}}
    soup = cooked(stocked, **asked)
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
    trials = {one["way"]: one["difference"] for one in search["trials"]}
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

    again = cooked(stocked, 200, **asked)
    assert (again["cached"], again["digest"], again["verification"]) == (True, soup["digest"], soup["verification"])


@pytest.mark.one_database
def test_what_a_method_has_to_know_is_computed_once_and_goes_with_its_text(stocked, http):
    name, blobs = "acme/fisher-law", stocked.world.registry.blobs
    stocked.world.push(name, seed=3, domain="law", sample={"texts": passages("court", 30, seed=5)}, provenance=DECLARED)
    recipe, mixing = {"ingredients": [{"ref": name, "weight": 2}, {"ref": "acme/kitchen"}]}, {"method": "fisher"}
    before = newest_search(stocked)
    soup = cooked(stocked, recipe=recipe, mixing=mixing, name="acme/fisher")
    assert newest_search(stocked) != before  # no plain cook waits behind it
    named = [one["statistic"] for one in soup["recipe"]["ingredients"]]
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
    asked = {"texts": sample_of("kitchen")["texts"], "encoder": "base"}
    if path == "/v1/select":
        asked = {"sample": sample_of("kitchen"), "selector": {"kind": "cosine", "encoder": "base"}}
    assert stocked.world.client.post(path, json={**asked, "wait": 120}).status_code == 200
    refused = stocked.world.client.post(path, json={**asked, "wait": 1e6})
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
    spec = {"kind": "uniform"}
    before = fitted(stocked, spec)
    assert (before["idle"], before["asked_at"] >= before["fitted_at"]) == (False, True)
    nobody_asks_for(stocked, before)
    assert push_late(stocked, client, "late", 41)
    assert before["id"] in {one["id"] for one in http.get("/v1/selectors").json()["data"]}
    seen = http.get(f"/v1/selectors/{before['id']}").json()
    assert (seen["idle"], seen["not_yet_included"]) == (True, ["acme/late@1"])

    reader = stocked.world.headers(stocked.world.key(["read"]))  # the pool was fitted before: no right to fit is needed
    body = {"sample": sample_of("kitchen"), "selector": spec}
    assert select(stocked, headers=reader, **body, pool={"namespaces": ["acme"]}).status_code == 403
    answer = selected(stocked, **body, pool={})
    assert answer["selector"] != before["id"]
    assert answer["not_yet_included"] == []
    assert "late" in domains_of(answer)
    after, old = (http.get(f"/v1/selectors/{one}").json() for one in (answer["selector"], before["id"]))
    assert (after["idle"], seen["asked_at"] < after["asked_at"]) == (False, True)
    assert (old["idle"], old["asked_at"]) == (False, None)


def domains_of(answer: dict) -> set[str]:
    return {one["domain"] for one in answer["selection"]["selected"]}


@pytest.mark.one_database
def test_a_cook_has_an_idle_selector_refitted(stocked, http, client):
    spec = {"kind": "cosine", "encoder": "base", "seed": 77}
    before = fitted(stocked, spec)
    nobody_asks_for(stocked, before)
    push_late(stocked, client, "latest", 42)
    asked = {"sample": sample_of("kitchen"), "selector": spec, "name": "acme/asked", "options": {"when_none": "top"}}
    soup = cook(stocked, **asked).json()
    assert soup["not_yet_included"] == []
    assert soup["selector"] != before["id"]
    after = http.get(f"/v1/selectors/{soup['selector']}").json()
    assert (after["idle"], after["asked_at"] > before["asked_at"]) == (False, True)


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
    assert {one["digest"]: (one["name"], one["unit"], one["dimensions"]) for one in card["encoders"]} == {
        digest: (one.name, one.unit, one.dimensions) for digest, one in base.encoders().items()
    }
    assert http.get("/v1/models/acme/kitchen").json()["encoders"] is None


@pytest.mark.one_database
def test_selections_beyond_what_is_embedded_at_once_are_429(stocked):
    body = {"sample": sample_of("kitchen"), "selector": {"kind": "cosine", "encoder": "base"}}
    turns, held = stocked.world.runtime.services.selections, 0
    while turns.acquire(blocking=False):
        held += 1
    try:
        refused = select(stocked, **body)
    finally:
        turns.release(held)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert selected(stocked, **body)


@pytest.mark.one_database
def test_a_key_that_only_reads_selects_but_never_starts_a_fit(stocked, http):
    reader = stocked.world.headers(stocked.world.key(["read"]))
    known = {"sample": sample_of("kitchen"), "selector": {"kind": "cosine", "encoder": "base"}}
    assert selected(stocked, **known)
    assert selected(stocked, **known, headers=reader)

    def fits() -> list[str]:
        return [job["id"] for job in http.get("/v1/jobs?kind=fit").json()["data"]]

    before = fits()
    refused = select(stocked, headers=reader, **{**known, "selector": {"kind": "gmm", "seed": 12345}})
    assert "has no fit of this selector" in refusal(refused, 403)
    assert fits() == before
