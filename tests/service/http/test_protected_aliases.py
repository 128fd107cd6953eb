"""Protected aliases: only an admin makes, moves or removes them, and retires what they point at."""

from __future__ import annotations

import pytest

from tests.service.servers import World

ALIASES = "/v1/adapters/guarded/one/aliases"


@pytest.fixture(scope="module")
def writer(world: World) -> dict[str, str]:
    for seed in (1, 2):
        world.push("guarded/one", seed=seed)
    changed = world.client.patch("/v1/namespaces/guarded", json={"protected_aliases": ["prod", "prod", "canary"]})
    assert changed.json()["protected_aliases"] == ["canary", "prod"]
    assert changed.json()["tuning"] == "allow", "what is not named stays"
    return world.headers(world.key(["read", "write"], ["guarded"]))


def test_a_writer_moves_other_aliases_only(world: World, writer: dict[str, str]) -> None:
    assert world.client.put(f"{ALIASES}/free", json={"version": 1}, headers=writer).status_code == 200
    made = world.client.put(f"{ALIASES}/prod", json={"version": 1}, headers=writer)
    assert made.status_code == 403, "nor made before it is there"
    assert "'prod' is protected in namespace 'guarded'" in made.json()["error"]["message"]

    admin = world.headers(world.key(["admin"], ["guarded"]))
    assert world.client.put(f"{ALIASES}/prod", json={"version": 1}, headers=admin).status_code == 200
    for refused in (
        world.client.put(f"{ALIASES}/prod", json={"version": 2}, headers=writer),
        world.client.delete(f"{ALIASES}/prod", headers=writer),
    ):
        assert refused.status_code == 403
    assert world.client.get("/v1/adapters/guarded/one@prod").json()["version"] == 1


def test_a_writer_retires_nothing_that_one_points_at(world: World, writer: dict[str, str]) -> None:
    world.client.put(f"{ALIASES}/prod", json={"version": 1})
    for name in ("one@1", "one@prod", "one"):
        refused = world.client.delete(f"/v1/adapters/guarded/{name}", headers=writer)
        assert refused.status_code == 403
        assert "guarded/one@1 is what the protected alias 'prod' points at" in refused.json()["error"]["message"]
    assert world.client.delete("/v1/adapters/guarded/one@2", headers=writer).status_code == 200
    assert world.client.get("/v1/adapters/guarded/one@1").status_code == 200
    restored = world.client.post("/v1/adapters/guarded/one@2/restore", headers=writer)
    assert restored.status_code == 200


def test_what_is_no_longer_protected_is_free_again(world: World, writer: dict[str, str]) -> None:
    world.client.patch("/v1/namespaces/guarded", json={"protected_aliases": []})
    assert world.client.put(f"{ALIASES}/prod", json={"version": 2}, headers=writer).status_code == 200
    assert world.client.delete(f"{ALIASES}/prod", headers=writer).status_code == 204
    world.client.patch("/v1/namespaces/guarded", json={"protected_aliases": ["canary", "prod"]})


@pytest.mark.parametrize(
    "body", [{"protected_aliases": ["12"]}, {"protected_aliases": ["A"]}, {"unnamed_soup_days": -1}]
)
def test_what_can_be_no_setting_is_refused(world: World, body: dict[str, object]) -> None:
    assert world.client.patch("/v1/namespaces/guarded", json=body).status_code == 400
