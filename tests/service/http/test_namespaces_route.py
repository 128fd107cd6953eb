"""Settings of a namespace over HTTP: who reads and changes them, the audit, and cooks and alias moves they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.postgres import KINDS
from tests.service.answers import answered, refusal, refusal_with_code
from tests.service.servers import World

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # journeys ask each kind what these do
SAMPLE = {"texts": [f"passage number {number} of a novel domain" for number in range(30)]}


def change(world: World, ns: str, tuning: str, secret: str | None = None, **headers: str) -> Any:
    key = {} if secret is None else world.headers(secret)
    return world.client.patch(f"/v1/namespaces/{ns}", json={"tuning": tuning}, headers={**key, **headers})


def test_the_defaults_are_there_before_anything_is(world: World) -> None:
    assert answered(world.client.get("/v1/namespaces/untouched")) == {
        "object": "namespace",
        "namespace": "untouched",
        "tuning": "allow",
        "protected_aliases": [],
        "unnamed_soup_days": None,
        "etag": "allow-0",
    }


def test_what_is_changed_is_read_and_audited(world: World) -> None:
    changed = answered(change(world, "acme", "forbid", **{"x-request-id": "r-78"}))
    assert changed["tuning"] == "forbid"
    assert world.client.get("/v1/namespaces/acme").json() == changed
    (entry, *_) = world.client.get("/v1/audit", headers=world.headers(world.key(["admin"], ["acme"]))).json()["data"]
    assert (entry["action"], entry["subject"], entry["request_id"]) == ("namespace.change", "acme/", "r-78")
    assert entry["detail"] == {"tuning": "forbid", "before": {"tuning": "allow"}}


def test_only_its_admins_change_it(world: World) -> None:
    for scopes, namespaces, status in (
        (["read", "write", "infer"], ["team"], 403),
        (["admin"], ["other"], 404),
        (["admin"], ["team"], 200),
        (["admin"], None, 200),
    ):
        assert change(world, "team", "default", world.key(scopes, namespaces)).status_code == status


def test_of_two_changes_at_the_same_time_none_is_lost(world: World) -> None:
    etag = world.client.get("/v1/namespaces/raced").json()["etag"]
    first = answered(change(world, "raced", "forbid", **{"if-match": f'"{etag}"'}))
    assert first["etag"] in refusal(change(world, "raced", "default", **{"if-match": f'"{etag}"'}), 412)
    assert change(world, "raced", "default", **{"if-match": "*"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tuning": "never"},
        {"tuning": None},
        {"tuning": "allow", "odd": 1},
        {"protected_aliases": ["12"]},
        {"protected_aliases": ["A"]},
        {"unnamed_soup_days": -1},
    ],
)
def test_a_setting_that_is_none_is_refused(world: World, body: dict[str, Any]) -> None:
    assert world.client.patch("/v1/namespaces/acme", json=body).status_code == 400


@pytest.mark.parametrize("ns", ["base", "UPPER"])
def test_what_can_be_no_namespace_is_refused(world: World, ns: str) -> None:
    assert world.client.get(f"/v1/namespaces/{ns}").status_code == 400
    assert change(world, ns, "forbid").status_code == 400


@pytest.mark.parametrize("name", ["strict/soup", None])
def test_where_tuning_is_forbidden_no_job_is_made(world: World, name: str | None) -> None:
    assert change(world, "strict", "forbid").status_code == 200
    writer = world.headers(world.key(["read", "write"], ["strict"]))
    before = set(world.registry.blobs.digests())
    body = {"sample": SAMPLE, "effort": "tune", **({} if name is None else {"name": name})}
    world.push("strict/one", seed=3)
    answer = world.client.post("/v1/soups", json=body, headers=writer)
    assert "'strict' forbids" in refusal_with_code(answer, 403, "forbidden")
    assert answer.json()["error"]["param"] == "effort"
    assert world.client.get("/v1/jobs?kind=cook", headers=writer).json()["data"] == []
    assert len(set(world.registry.blobs.digests()) - before) <= 1, "the adapter's, and no request's"


def test_a_digest_that_is_none_is_refused_as_a_filter(world: World) -> None:
    assert world.client.get("/v1/adapters", params={"tuned_on": "sha256:1"}).status_code == 400
    assert world.client.get("/v1/adapters", params={"tuned_on": "sha256:" + "0" * 64}).json()["data"] == []


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
    made = world.client.put(f"{ALIASES}/prod", json={"version": 1}, headers=writer)  # nor before it is there
    assert "'prod' is protected in namespace 'guarded'" in refusal(made, 403)

    admin = world.headers(world.key(["admin"], ["guarded"]))
    assert world.client.put(f"{ALIASES}/prod", json={"version": 1}, headers=admin).status_code == 200
    assert world.client.put(f"{ALIASES}/prod", json={"version": 2}, headers=writer).status_code == 403
    assert world.client.delete(f"{ALIASES}/prod", headers=writer).status_code == 403
    assert world.client.get("/v1/adapters/guarded/one@prod").json()["version"] == 1


def test_a_writer_retires_nothing_that_one_points_at(world: World, writer: dict[str, str]) -> None:
    world.client.put(f"{ALIASES}/prod", json={"version": 1})
    for name in ("one@1", "one@prod", "one"):
        retired = world.client.delete(f"/v1/adapters/guarded/{name}", headers=writer)
        assert "The protected alias 'prod' points at guarded/one@1" in refusal(retired, 403)
    assert world.client.delete("/v1/adapters/guarded/one@2", headers=writer).status_code == 200
    assert world.client.get("/v1/adapters/guarded/one@1").status_code == 200
    assert world.client.post("/v1/adapters/guarded/one@2/restore", headers=writer).status_code == 200


def test_what_is_no_longer_protected_is_free_again(world: World, writer: dict[str, str]) -> None:
    world.client.patch("/v1/namespaces/guarded", json={"protected_aliases": []})
    assert world.client.put(f"{ALIASES}/prod", json={"version": 2}, headers=writer).status_code == 200
    assert world.client.delete(f"{ALIASES}/prod", headers=writer).status_code == 204
    world.client.patch("/v1/namespaces/guarded", json={"protected_aliases": ["canary", "prod"]})
