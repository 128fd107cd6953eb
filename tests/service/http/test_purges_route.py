"""Purging over HTTP: who may, what is told to whom, what is left of text and bytes, and collections while it serves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from registry.names import parse_ref, sha256_digest
from tests.service.answers import answered, refusal, refusal_with_code
from tests.service.http.stock import cook_soup
from tests.service.servers import Soup, World

TEXTS = [f"passage {number} that nobody may read any more" for number in range(30)]


def purge(world: World, name: str, secret: str | None = None) -> Any:
    return world.client.post(f"/v1/adapters/{name}/purge", headers={} if secret is None else world.headers(secret))


def test_only_admins_may_and_only_a_version(world: World) -> None:
    world.push("held/one", seed=1)
    assert purge(world, "held/one@1", world.key(["read", "write", "infer"], ["held"])).status_code == 403
    refusal_with_code(purge(world, "held/one"), 400, "invalid_name")
    world.client.put("/v1/adapters/held/one/aliases/prod", json={"version": 1})
    assert purge(world, "held/one@prod").status_code == 400
    refusal_with_code(purge(world, "held/one@1"), 409, "conflict")
    assert world.client.get("/v1/adapters/held/one").status_code == 200


def test_neither_text_nor_bytes_are_left(world: World) -> None:
    pushed = world.push("gone/one", seed=2, sample={"texts": TEXTS})
    world.client.delete("/v1/adapters/gone/one@1")
    body = answered(purge(world, "gone/one@1", world.key(["admin"], ["gone"])))
    assert body["adapter"]["ref"] == "gone/one@1"
    assert (body["blobs"] >= 2, body["bytes"] > 0, body["not_rebuildable"]) == (True, True, [])
    for digest in (pushed["weights_blob"], pushed["sample"]["digest"]):
        assert world.client.get(f"/v1/blobs/{digest}").status_code == 404
        assert not world.registry.blobs.has(digest)
    for path in ("gone/one@1", "gone/one", pushed["digest"], "gone/one@1/files/samples.jsonl"):
        assert world.client.get(f"/v1/adapters/{path}").status_code == 410, path
    assert world.client.post("/v1/adapters/gone/one@1/restore").status_code == 410
    assert purge(world, "gone/one@1").status_code == 410
    request = {"model": "gone/one@1", "prompt": "a", "max_tokens": 1}
    assert "was purged on" in refusal(world.client.post("/v1/completions", json=request), 410)
    stored = [path for path in world.runtime.settings.data.rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if TEXTS[0].encode() in path.read_bytes()]


def test_a_soup_of_it_is_served_and_says_that_it_cannot_be_rebuilt(world: World) -> None:
    for name, seed in (("parts/law", 4), ("parts/tax", 5)):
        world.push(name, seed=seed)
    for name in ("parts/mixed", "elsewhere/mixed"):
        cook_soup(world, name, {"parts/law": 0.5, "parts/tax": 0.5})
    assert world.client.get("/v1/adapters/parts/mixed/lineage").json()["rebuildable"] is True
    body = purge(world, "parts/law@1", world.key(["admin"], ["parts"])).json()
    assert (body["not_rebuildable"], body["elsewhere"]) == (["parts/mixed@1"], 1)
    lineage = world.client.get("/v1/adapters/parts/mixed/lineage").json()
    assert lineage["rebuildable"] is False
    assert sorted((parent["ref"], parent["purged"]) for parent in lineage["parents"] if parent["purged"]) == [
        (None, True)
    ]
    request = {"model": "parts/mixed", "prompt": "a", "max_tokens": 1}
    assert world.client.post("/v1/completions", json=request).status_code == 200
    assert world.client.get("/v1/adapters/parts/tax/lineage").json()["rebuildable"] is None


def test_the_job_that_cooked_a_purged_soup_is_shown_without_it_and_never_with_another(world: World) -> None:
    headers = world.headers(world.key(["admin", "write", "read"], ["cooked"]))
    for seed, name in enumerate(("law", "tax"), start=6):
        world.push(f"cooked/{name}", seed=seed)
    recipe = {"ingredients": [{"ref": f"cooked/{name}"} for name in ("law", "tax")]}
    body = {"recipe": recipe, "name": "cooked/mixed", "wait": 60}
    answered(world.client.post("/v1/soups", json=body, headers=headers), 201)
    answered(world.client.post("/v1/adapters/cooked/mixed@1/purge", headers=headers))
    world.push("other/secret", seed=9)  # it must not take the purged one's place
    (job,) = answered(world.client.get("/v1/jobs?kind=cook&limit=1", headers=headers))["data"]
    assert (job["result"]["model"], job["result"]["soup"]) == ("cooked/mixed@1", None)
    assert job["result"]["recipe"]["ingredients"]
    assert answered(world.client.get(f"/v1/jobs/{job['id']}", headers=headers)) == job
    assert "event: done" in world.client.get(f"/v1/jobs/{job['id']}/events", headers=headers).text


def test_a_collection_by_hand_is_for_admins_of_everything(world: World) -> None:
    for scopes, namespaces in ((["read", "write", "infer"], None), (["admin"], ["held"])):
        request = {"json": {"dry_run": True}, "headers": world.headers(world.key(scopes, namespaces))}
        assert world.client.post("/v1/collect", **request).status_code == 403
    with world.runtime.database.write() as catalogue:
        catalogue.removals.forget([sha256_digest(b"long gone")], datetime.now(UTC) - timedelta(days=1))
    for dry_run, due in ((True, 1), (False, 0)):
        answer = answered(world.client.post("/v1/collect", json={"dry_run": dry_run}))
        assert (answer["dry_run"], answer["files"]) == (dry_run, 1)
        with world.runtime.database.read() as catalogue:
            assert catalogue.removals.count_due(datetime.now(UTC)) == due
    (entry,) = world.client.get("/v1/audit?action=server.collect").json()["data"]
    assert entry["detail"]["files"] == 1
    assert entry["key_id"].startswith("key-")


def test_a_collection_from_the_command_line_names_what_went(world: World, soup: Soup) -> None:
    assert soup("collect", "--dry-run") == (0, "", "Would go: nothing is due.\n")
    for seed, name in enumerate(("one", "two")):
        world.push(f"mixed/{name}", seed=seed)
    recipe = {"ingredients": [{"ref": f"mixed/{name}", "weight": 0.5} for name in ("one", "two")]}
    cooked = answered(world.client.post("/v1/soups", json={"recipe": recipe, "wait": 60}), 201)["model"]
    with world.runtime.database.write() as catalogue:
        row = catalogue.adapters.resolve(None, parse_ref(cooked))
        catalogue.adapters.retire(row.id, at=datetime.now(UTC) - timedelta(days=30))
    assert soup("collect", "--dry-run") == (0, f"{cooked}\n", "Would go: 1 retired unnamed soups removed.\n")
    assert soup("collect") == (0, f"{cooked}\n", "Done: 1 retired unnamed soups removed.\n")
    assert world.client.get(f"/v1/adapters/{cooked}").status_code == 410
