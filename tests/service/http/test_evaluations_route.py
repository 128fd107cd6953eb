"""`/v1/evaluations`: its results equal those of the perplexity route; which are stored, and which keys see them."""

from __future__ import annotations

import base64
import itertools
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from registry.context import Caller
from registry.errors import Cancelled
from registry.evaluate import matrix as verb
from registry.names import digest_of, parse_ref
from registry.select.requested import pool_of
from registry.spec import PoolRequest
from tests.service.answers import answered, refusal
from tests.service.http.stock import push_embedded
from tests.service.servers import BASE_ID, Soup, World, adapter_weights

TEXTS = {
    "law": [f"The court held that contract number {number} was void." for number in range(25)],
    "food": [f"Heat the oil, add {number} onions and stir until golden." for number in range(25)],
    "code": [f"def f{number}(x): return x + {number} if x else None" for number in range(25)],
}


def pushed(world: World, ref: str, domain: str, seed: int, **manifest: Any) -> None:
    """An adapter with the sample of a domain, embedded."""
    push_embedded(world, ref, TEXTS[domain], domain=domain, seed=seed, **manifest)


def overflowing(world: World) -> dict[str, Any]:
    """Files of an adapter whose outputs overflow."""
    good = load(adapter_weights(world.runtime, seed=0))
    data = save({name: torch.full_like(value, 3e38) for name, value in good.items()})
    return {"adapter_model.safetensors": {"base64": base64.b64encode(data).decode()}}


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    for seed, domain in enumerate(("law", "food"), 1):
        pushed(world, f"acme/{domain}", domain, seed)
    world.push("acme/without", seed=8, domain="none")  # no sample: it is in no pool
    return world


@pytest.fixture
def headers(stocked: World) -> dict[str, str]:
    return stocked.headers(stocked.key(["read", "write"], ["acme"]))


def evaluated(world: World, headers: dict[str, str], **body: Any) -> dict[str, Any]:
    """The result of a new evaluation job."""
    answer = world.client.post("/v1/evaluations", json=body, headers=headers)
    path = f"/v1/jobs/{answered(answer, 202)['id']}"
    assert answer.headers["location"] == path
    world.client.get(f"{path}/events")
    job = world.client.get(path, headers=headers).json()
    assert job["state"] == "succeeded", job["error"]
    return dict(job["result"])


def evaluations(world: World, headers: dict[str, str], **query: str) -> dict[tuple[str, str], dict[str, Any]]:
    rows = world.client.get("/v1/evaluations", params=query, headers=headers).json()["data"]
    return {(row["adapter"], row["sample_of"]): row for row in rows}


def test_every_adapter_is_evaluated_on_every_sample_as_the_perplexity_route_does_it(
    stocked: World, headers: dict[str, str]
) -> None:
    assert evaluations(stocked, headers) == {}
    assert evaluated(stocked, headers, passages=10) == {"pairs": 4, "computed": 4, "known": 0, "failed": {}}
    by_pair = evaluations(stocked, headers)
    assert set(by_pair) == set(itertools.product(("acme/law@1", "acme/food@1"), repeat=2))
    for (adapter, sample_of), evaluation in by_pair.items():
        body = {"model": adapter, "baseline": f"base/{BASE_ID}", "texts": TEXTS[evaluation["domain"]][:10]}
        same = stocked.client.post("/v1/perplexity", json=body).json()
        expected = {
            "mean_nll": pytest.approx(same["mean_nll"], rel=1e-6),
            "base_mean_nll": pytest.approx(same["baseline"]["mean_nll"], rel=1e-6),
            "difference": pytest.approx(same["baseline"]["difference"], abs=1e-6),
            "standard_error": pytest.approx(same["baseline"]["standard_error"], rel=1e-4),
            "tokens": same["tokens"],
            "passages": 10,
        }
        assert {name: evaluation[name] for name in expected} == expected, (adapter, sample_of)


def test_what_is_known_is_not_computed_again_and_what_is_new_is(stocked: World, headers: dict[str, str]) -> None:
    evaluated(stocked, headers, passages=10)
    previous = evaluations(stocked, headers)
    assert evaluated(stocked, headers, passages=5) == {"pairs": 4, "computed": 0, "known": 4, "failed": {}}
    assert evaluations(stocked, headers) == previous
    more = evaluated(stocked, headers, passages=500)  # as many as there are
    assert (more["computed"], {evaluation["passages"] for evaluation in evaluations(stocked, headers).values()}) == (
        4,
        {25},
    )
    pushed(stocked, "acme/code", "code", 3)
    assert evaluated(stocked, headers, passages=500) == {"pairs": 9, "computed": 5, "known": 4, "failed": {}}
    digest = stocked.client.get("/v1/adapters/acme/code").json()["digest"]
    assert {adapter for adapter, _ in evaluations(stocked, headers, adapter=digest)} == {"acme/code@1"}
    assert len(evaluations(stocked, headers, adapter=digest)) == 3
    sample = stocked.client.get("/v1/adapters/acme/law").json()["sample"]["digest"]
    assert {of for _, of in evaluations(stocked, headers, sample=sample)} == {"acme/law@1"}


def test_lists_are_paged_and_filtered(stocked: World, headers: dict[str, str]) -> None:
    evaluated(stocked, headers)
    count = len(evaluations(stocked, headers))
    first = stocked.client.get("/v1/evaluations", params={"limit": 3}, headers=headers).json()
    rest = stocked.client.get(
        "/v1/evaluations", params={"limit": 100, "cursor": first["next_cursor"]}, headers=headers
    ).json()
    assert (len(first["data"]), len(rest["data"]), rest["next_cursor"]) == (3, count - 3, None)
    assert len(evaluations(stocked, headers, base_model=f"base/{BASE_ID}", namespace="acme")) == count
    assert evaluations(stocked, headers, namespace="other") == {}
    for query in ({"base_model": "none"}, {"adapter": "x"}, {"q": "x"}):
        assert stocked.client.get("/v1/evaluations", params=query, headers=headers).status_code == 400, query


def test_a_job_that_is_ended_leaves_what_it_had_and_the_next_goes_on(stocked: World) -> None:
    pushed(stocked, "ended/law", "law", 21)
    pushed(stocked, "ended/food", "food", 22)
    caller = Caller("somebody", ("ended",), "r")
    base, pool = pool_of(stocked.registry, caller, PoolRequest())
    reports: list[tuple[int, int]] = []

    def stop(done: int, total: int, _: str) -> None:
        reports.append((done, total))
        if done == 3:
            raise Cancelled("It was cancelled.")

    with pytest.raises(Cancelled):
        verb.cross_evaluate(stocked.registry, caller, base, pool, passages=5, progress=stop)
    assert reports[0] == (0, 4)
    headers = stocked.headers(stocked.key(["read", "write"], ["ended"]))
    assert len(evaluations(stocked, headers)) == 3
    assert evaluated(stocked, headers, passages=5) == {"pairs": 4, "computed": 1, "known": 3, "failed": {}}


def test_text_that_several_adapters_have_is_one_sample(stocked: World) -> None:
    for seed, name in enumerate(("a", "b"), 51):
        push_embedded(stocked, f"shared/{name}", TEXTS["law"], seed=seed, domain=name)
    headers = stocked.headers(stocked.key(["read", "write"], ["shared"]))
    assert evaluated(stocked, headers, passages=5) == {"pairs": 2, "computed": 2, "known": 0, "failed": {}}
    assert len(evaluations(stocked, headers)) == 2


def test_a_request_like_one_that_waits_gives_that_job(stocked: World, headers: dict[str, str]) -> None:
    _, pool = pool_of(stocked.registry, Caller("k", ("acme",), "r"), PoolRequest())
    with stocked.registry.database.write() as catalogue:
        arguments = {"pool": pool.model_dump(mode="json"), "base": BASE_ID, "passages": 7, "scope": ["acme"]}
        key = f"evaluate:{digest_of([pool.digest, 7])}:acme"
        waits = catalogue.jobs.enqueue(
            "evaluate", arguments, namespace="acme", created_by="other", dedupe_key=key, delay=3600.0
        )
    answer = stocked.client.post("/v1/evaluations", json={"passages": 7}, headers=headers)
    assert answered(answer, 202)["id"] == waits.id
    assert stocked.client.post(f"/v1/jobs/{waits.id}/cancel", headers=headers).json()["state"] == "cancelled"


def test_other_namespaces_see_nothing_of_it_but_of_bytes_and_text_that_they_have_too(
    stocked: World, headers: dict[str, str]
) -> None:
    evaluated(stocked, headers)
    other_headers = stocked.headers(stocked.key(["read", "write"], ["elsewhere"]))
    assert evaluations(stocked, other_headers) == {}
    body = {"pool": {"namespaces": ["acme"]}}
    assert stocked.client.post("/v1/evaluations", json=body, headers=other_headers).status_code == 403
    assert stocked.client.post("/v1/evaluations", json={}, headers=other_headers).status_code == 400  # an empty pool
    reader = stocked.headers(stocked.key(["read"], ["acme"]))
    assert stocked.client.post("/v1/evaluations", json={}, headers=reader).status_code == 403
    pushed(stocked, "elsewhere/law", "law", 1)  # the bytes and the sample of acme/law
    assert set(evaluations(stocked, other_headers)) == {("elsewhere/law@1", "elsewhere/law@1")}


def test_it_goes_with_the_adapter_and_with_the_sample(stocked: World, headers: dict[str, str]) -> None:
    evaluated(stocked, headers)
    food = stocked.client.get("/v1/adapters/acme/food").json()
    stocked.client.delete("/v1/adapters/acme/food@1")
    assert not [pair for pair in evaluations(stocked, headers) if "acme/food@1" in pair]
    stocked.client.post("/v1/adapters/acme/food@1/restore")
    assert [pair for pair in evaluations(stocked, headers) if "acme/food@1" in pair]  # retired is not removed
    assert stocked.client.post("/v1/adapters/acme/food@1/purge").status_code == 200
    with stocked.runtime.database.engine.begin() as connection:
        rows = connection.exec_driver_sql("SELECT adapter_digest, sample_digest FROM evaluations").all()
    assert rows
    assert not [row for row in rows if food["digest"] in row]
    with stocked.registry.database.read() as catalogue:
        shared = catalogue.adapters.find(None, parse_ref("ended/food@1")).sample
    # Text that another version has stays, with what was evaluated on it.
    assert [row for row in rows if row[1] == shared.digest]


def test_too_large_a_pool_is_refused_with_its_size(
    stocked: World, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "MAX_ADAPTERS", 1)
    answer = stocked.client.post("/v1/evaluations", json={}, headers=headers)
    assert "maximum for an evaluation is 1" in refusal(answer, 413)
    for body in ({"passages": 1}, {"passages": 501}, {"pool": {"base_model": "none"}}):
        assert stocked.client.post("/v1/evaluations", json=body, headers=headers).status_code == 400, body


def test_the_command_prints_what_its_pool_has_and_tells_what_failed(stocked: World, soup: Soup) -> None:
    pushed(stocked, "left/law", "law", 61, card={"tags": ["left"]})
    pushed(stocked, "right/food", "food", 62)
    both = ("--pool-namespace", "left", "--pool-namespace", "right")
    code, out, err = soup("matrix", *both, "--passages", "5")
    assert (code, out.count("left/law@1"), out.count("right/food@1")) == (0, 2, 2), err
    assert out.splitlines()[0].split()[:3] == ["DOMAIN", "ADAPTER", "DIFFERENCE"]
    assert soup("matrix", "--show", *both)[1] == out
    tagged = soup("matrix", "--show", *both, "--pool-tag", "left")[1]
    assert (tagged.count("left/law@1"), tagged.count("right/food@1")) == (1, 0)
    assert "Nothing is evaluated yet." in soup("matrix", "--show", "--pool-namespace", "nobody")[2]
    code, out, err = soup("matrix", *both, "--passages", "6", "--no-wait")
    assert (code, out.startswith("job-"), "soup jobs watch" in err) == (0, True, True)
    pushed(stocked, "left/food", "food", 0, files=overflowing(stocked))
    code, out, err = soup("matrix", "--pool-namespace", "left", "--passages", "5")
    assert (code, "left/food@1: " in err, "left/law@1" in out) == (1, True, True), err
