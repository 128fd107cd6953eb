"""Adapters after their push: change, refit, aliases, retirement, files, listing; and whose they are."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from registry.names import sha256_digest
from registry.progress import silent
from registry.samples.embeddings_file import save_embeddings
from registry.select.fit import fit
from registry.spec import PoolSpec, UniformSpec
from tests.service.answers import answered, refusal, refusal_with_code
from tests.service.servers import BASE_ID, World, adapter_weights

SETTINGS = {"job_workers": 0}  # jobs stay in the queue
LATE = "precondition_failed"


def vectors(world: World, seed: int = 0) -> dict[str, Any]:
    """A sample that needs no embedding."""
    encoder = next(
        candidate for candidate in world.runtime.bases[BASE_ID].encoders().values() if candidate.name == "base"
    )
    data = save_embeddings(np.random.default_rng(seed).normal(size=(30, 32)).astype(np.float32))
    file = {"base64": base64.b64encode(data).decode()}
    return {"embeddings": [{"encoder": encoder.digest, "unit": "passage", "file": file}]}


def fitted(world: World, **pool: Any) -> str:
    """A fitted `uniform` selector over a pool."""
    spec = PoolSpec(base_fingerprint=world.registry.bases[BASE_ID].shape.fingerprint, **pool)
    return fit(world.registry, spec, UniformSpec(), encoder_digest=None, progress=silent).id


def queued(world: World, kind: str) -> list[str]:
    return [job["id"] for job in world.client.get(f"/v1/jobs?kind={kind}&state=queued&limit=200").json()["data"]]


def get(world: World, path: str, **request: Any) -> Any:
    return world.client.get(f"/v1/adapters/{path}", **request)


# --- change ---------------------------------------------------------------------------------------


def test_card_and_domain_change_and_everything_else_stays(world: World) -> None:
    pushed = world.push("acme/law", card={"description": "old", "tags": ["eu"]})
    changes = {"card": {"description": "new"}, "domain": "statutes"}
    updated = answered(world.client.patch("/v1/adapters/acme/law", json=changes))
    assert (updated["card"]["description"], updated["card"]["tags"], updated["domain"]) == ("new", [], "statutes")
    assert updated["etag"] != pushed["etag"]
    same = ("digest", "version", "config", "provenance", "created_at", "weights_blob")
    assert {name: updated[name] for name in same} == {name: pushed[name] for name in same}
    assert get(world, "acme/law").json() == {**updated, "job": None, "warnings": []}


@pytest.mark.parametrize("body", [{}, {"card": None, "domain": None}])
def test_a_change_of_nothing_is_refused(world: World, body: dict[str, Any]) -> None:
    pushed = world.push("acme/constant")
    answer = world.client.patch("/v1/adapters/acme/constant", json=body)
    assert refusal(answer, 400) == "Name at least one of card, domain, owner to change."
    assert get(world, "acme/constant").json()["etag"] == pushed["etag"]


def test_lists_leave_the_provenance_to_each_adapter(world: World) -> None:
    """200 adapters of 64 KiB each would make a page of 13 MB."""
    log = {"training": {"log": "x" * 60_000}}
    world.push("acme/long", provenance=log)
    assert get(world, "acme/long").json()["provenance"]["training"] == log["training"]
    page = world.client.get("/v1/adapters?q=long")
    assert [adapter["name"] for adapter in page.json()["data"]] == ["long"]
    assert "provenance" not in page.json()["data"][0]
    assert len(page.content) < 10_000
    assert "provenance" not in world.client.delete("/v1/adapters/acme/long").json()["data"][0]


def test_of_two_changes_to_what_was_read_one_is_refused(world: World) -> None:
    etag = world.push("acme/raced")["etag"]
    first = {"json": {"domain": "one"}, "headers": {"if-match": f'"{etag}"'}}
    assert world.client.patch("/v1/adapters/acme/raced", **first).status_code == 200
    refusal_with_code(world.client.patch("/v1/adapters/acme/raced", **{**first, "json": {"domain": "two"}}), 412, LATE)
    assert get(world, "acme/raced").json()["domain"] == "one"


def test_a_domain_that_changes_refits_its_pools_and_only_these(world: World) -> None:
    world.push("pools/law", seed=1, sample=vectors(world))
    world.push("elsewhere/law", seed=2, sample=vectors(world, 1))
    fitted(world, namespaces=("pools",))
    fitted(world, namespaces=("elsewhere",))
    jobs_before = set(queued(world, "fit"))
    world.client.patch("/v1/adapters/pools/law", json={"domain": "statutes"})
    (job,) = set(queued(world, "fit")) - jobs_before
    with world.runtime.database.read() as catalogue:
        assert catalogue.jobs.get(None, job).arguments["pool"]["namespaces"] == ["pools"]
    world.client.patch("/v1/adapters/pools/law", json={"domain": "law again"})
    assert set(queued(world, "fit")) - jobs_before == {job}  # debounced
    world.client.delete("/v1/adapters/elsewhere/law")
    assert len(set(queued(world, "fit")) - jobs_before) == 2


def test_a_new_version_without_a_sample_is_refitted_for_and_until_then_the_old_one_serves(world: World) -> None:
    world.push("leaving/law", seed=1, sample=vectors(world))
    selector = fitted(world, namespaces=("leaving",))
    jobs_before = set(queued(world, "fit"))
    world.push("leaving/law", seed=2)
    assert len(set(queued(world, "fit")) - jobs_before) == 1
    answer = answered(
        world.client.post(
            "/v1/select",
            json={"sample": vectors(world), "selector": {"kind": "uniform"}, "pool": {"namespaces": ["leaving"]}},
        )
    )
    assert answer["selector"] == selector
    assert [adapter["ref"] for adapter in answer["selection"]["selected"]] == ["leaving/law@1"]


@pytest.mark.parametrize("wait", [True, "1"])
def test_seconds_to_wait_are_a_number(world: World, wait: Any) -> None:
    answer = world.client.post("/v1/selectors", json={"selector": {"kind": "uniform"}, "wait": wait})
    assert refusal(answer, 400) == "Field 'wait': input should be a valid number."


# --- aliases --------------------------------------------------------------------------------------


def test_an_alias_moves_by_compare_and_set(world: World) -> None:
    for seed in (1, 2):
        world.push("acme/aliased", seed=seed)
    path = "/v1/adapters/acme/aliased/aliases/stable"
    refusal_with_code(world.client.put(path, json={"version": 1}, headers={"if-match": "*"}), 412, LATE)
    first = answered(world.client.put(path, json={"version": 1}))
    assert first["ref"] == "acme/aliased@1"
    assert get(world, "acme/aliased@stable").json()["version"] == 1
    etag = first["etag"]
    assert world.client.put(path, json={"version": 2}, headers={"if-match": f'"{etag}"'}).json()["version"] == 2
    refusal_with_code(world.client.put(path, json={"version": 1}, headers={"if-match": f'"{etag}"'}), 412, LATE)
    assert world.client.request("DELETE", path, headers={"if-match": etag}).status_code == 412
    for if_match in (f'"{etag}", W/"2-2"', "*"):
        answered(world.client.put(path, json={"version": 2}, headers={"if-match": if_match}))
    listed = get(world, "acme/aliased/aliases").json()["data"]
    assert [(alias["alias"], alias["version"]) for alias in listed] == [("stable", 2)]
    assert [world.client.delete(path).status_code for _ in range(2)] == [204, 404]
    assert get(world, "acme/aliased@stable").status_code == 404


@pytest.mark.parametrize(
    ("alias", "body", "status"),
    [
        ("2", {"version": 1}, 400),
        ("Best", {"version": 1}, 400),
        ("best", {"version": 9}, 404),
        ("best", {"version": 0}, 400),
        ("best", {"version": True}, 400),
        ("best", {"version": "1"}, 400),
        ("best", {}, 400),
        ("-best", {"version": 1}, 400),
    ],
)
def test_bad_aliases(world: World, alias: str, body: Any, status: int) -> None:
    world.push("acme/named")
    assert world.client.put(f"/v1/adapters/acme/named/aliases/{alias}", json=body).status_code == status
    assert get(world, "acme/named/aliases").json()["data"] == []


# --- retirement -----------------------------------------------------------------------------------


def test_one_version_and_then_all_of_them(world: World) -> None:
    digests = [world.push("acme/old", seed=seed)["digest"] for seed in (51, 52, 53)]
    world.client.put("/v1/adapters/acme/old/aliases/best", json={"version": 2})
    retired = world.client.delete("/v1/adapters/acme/old@3").json()["data"]
    assert [(row["version"], row["retired_at"] is not None) for row in retired] == [(3, True)]
    assert get(world, "acme/old").json()["version"] == 2
    assert [get(world, ref).status_code for ref in ("acme/old@3", digests[2])] == [410, 410]
    assert [row["version"] for row in world.client.delete("/v1/adapters/acme/old").json()["data"]] == [2, 1]
    for ref in ("acme/old", "acme/old@1", "acme/old@best", digests[0]):
        refusal_with_code(get(world, ref), 410, "retired")
    for path in ("acme/old/files", "acme/old/files/README.md", "acme/old/lineage"):
        assert get(world, path).status_code == 410
    assert world.client.patch("/v1/adapters/acme/old", json={"domain": "x"}).status_code == 410
    assert world.client.delete("/v1/adapters/acme/old").status_code == 410
    assert not [row for row in world.client.get("/v1/adapters?limit=200").json()["data"] if row["name"] == "old"]


def test_a_retired_version_comes_back_and_its_pools_are_refitted(world: World) -> None:
    world.push("back/law", seed=54, sample=vectors(world))
    newest = world.push("back/law", seed=55, sample=vectors(world))
    fitted(world, namespaces=("back",))
    jobs_before = set(queued(world, "fit"))
    (gone,) = world.client.delete("/v1/adapters/back/law@2").json()["data"]
    with world.runtime.database.write() as catalogue:
        for job in set(queued(world, "fit")) - jobs_before:
            catalogue.jobs.cancel(job)
    path = "/v1/adapters/back/law@2/restore"
    assert world.client.post(path, headers={"if-match": f'"{newest["etag"]}"'}).status_code == 412
    assert get(world, "back/law@2").status_code == 410
    restored = answered(world.client.post(path, headers={"if-match": f'"{gone["etag"]}"'}))
    assert restored["retired_at"] is None
    assert get(world, "back/law").json()["version"] == 2
    assert len(set(queued(world, "fit")) - jobs_before) == 1
    assert answered(world.client.post(path))["etag"] == restored["etag"]
    audit = world.client.get("/v1/audit?limit=200").json()["data"]
    assert [entry["action"] for entry in audit].count("adapter.restore") == 1


def test_what_cannot_be_restored(world: World) -> None:
    world.push("acme/stays")
    world.client.delete("/v1/adapters/acme/stays")
    for ref, status in (("acme/never@1", 404), ("acme/stays@9", 404), ("acme/stays", 400)):
        assert world.client.post(f"/v1/adapters/{ref}/restore").status_code == status, ref
    assert get(world, "acme/stays@1").status_code == 410


# --- files ----------------------------------------------------------------------------------------


def test_files_with_etag_and_range(world: World) -> None:
    texts = [f"passage {number}" for number in range(30)]
    pushed = world.push("acme/files", seed=7, sample={"texts": texts})
    files = {file["name"]: file for file in get(world, "acme/files/files").json()["data"]}
    assert set(files) == {"adapter_config.json", "README.md", "adapter_model.safetensors", "samples.jsonl"}
    for name, file in files.items():
        answer = get(world, f"acme/files/files/{name}")
        assert (len(answer.content), sha256_digest(answer.content)) == (file["size"], file["digest"])
        assert answer.headers["etag"] == f'"{file["digest"]}"'
        assert "no-cache" in answer.headers["cache-control"]  # another version may stand behind the name tomorrow
        partial = get(world, f"acme/files/files/{name}", headers={"range": "bytes=2-9"})
        assert (partial.status_code, partial.content) == (206, answer.content[2:10])
    assert get(world, "acme/files/files/adapter_model.safetensors").content == adapter_weights(world.runtime, seed=7)
    assert json.loads(get(world, "acme/files/files/samples.jsonl").content.splitlines()[0]) == {"text": texts[0]}
    assert get(world, "acme/files/files/adapter_config.json").json()["base_fingerprint"] == pushed["base_fingerprint"]


def test_files_on_a_base_model_that_is_no_longer_served(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = world.push("acme/orphan")
    monkeypatch.delitem(world.runtime.bases, BASE_ID)
    assert get(world, "acme/orphan/files/adapter_config.json").json()["base_fingerprint"] == pushed["base_fingerprint"]


@pytest.mark.parametrize("name", ["samples.jsonl", "config.json", "..%2f..%2fadmin.key", "%2e%2e"])
def test_files_that_are_not_there(world: World, name: str) -> None:
    world.push("acme/bare", sample=vectors(world))
    answer = get(world, f"acme/bare/files/{name}")
    assert answer.status_code == 404
    assert "sk-soup" not in answer.text


# --- listing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "cursor=zzz",
        "kind=cake",
        "q=" + "x" * 201,
        "q=%25",
        "&".join(f"tag=t{n}" for n in range(9)),
    ],
)
def test_bad_queries(world: World, query: str) -> None:
    refusal_with_code(world.client.get(f"/v1/adapters?{query}"), 400, "invalid_parameter")


def test_jobs_have_no_unknown_state(world: World) -> None:
    for path in ("/v1/jobs", "/jobs.json", "/trainings.json"):
        assert "'state'" in refusal(world.client.get(f"{path}?state=done"), 400)
    assert world.client.get("/trainings.json?state=").status_code == 200, "no filter, as a browser sends it"


@pytest.mark.parametrize(("base_model", "count"), [(BASE_ID, 1), (f"base/{BASE_ID}", 1), ("base/none", 0)])
def test_a_base_model_is_named_by_its_id_or_its_ref(world: World, base_model: str, count: int) -> None:
    world.push("based/law", seed=63)
    page = world.client.get("/v1/adapters", params={"base_model": base_model, "namespace": "based"}).json()
    assert len(page["data"]) == count


# --- whose ----------------------------------------------------------------------------------------


def test_a_selector_over_more_than_a_key_reads_is_not_there(world: World) -> None:
    world.push("theirs/secret", seed=60, sample=vectors(world, 9))
    headers = world.headers(world.key(["read", "write", "infer"], ["ours"]))
    assert world.client.get(f"/v1/selectors/{fitted(world)}", headers=headers).status_code == 404
    assert world.client.get("/v1/selectors", headers=headers).json()["data"] == []


def test_selecting_never_names_what_the_key_does_not_read(world: World) -> None:
    world.push("ours2/law", seed=61, domain="law", sample=vectors(world, 1))
    world.push("theirs2/secret", seed=62, domain="hidden", sample=vectors(world, 2))
    fitted(world, namespaces=("ours2",))
    headers = world.headers(world.key(["read"], ["ours2"]))
    body = {"sample": vectors(world, 3), "selector": {"kind": "uniform"}}
    text = str(answered(world.client.post("/v1/select", json=body, headers=headers)))
    assert "theirs2" not in text
    assert "hidden" not in text
