"""Making, listing and revoking keys, and the audit that records it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.postgres import KINDS
from tests.service.answers import answered, refusal
from tests.service.servers import World

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # journeys ask each kind what these do


def make(world: World, secret: str | None = None, **body: Any) -> Any:
    headers = {} if secret is None else world.headers(secret)
    return world.client.post(
        "/v1/keys", json={"name": "k", "namespaces": None, "scopes": ["read"], **body}, headers=headers
    )


def test_the_secret_is_shown_once(world: World) -> None:
    made = answered(make(world, namespaces=["team", "team", "other"], scopes=["infer", "read"]), 201)
    assert made["secret"].startswith(made["prefix"])
    assert len(made["prefix"]) < 20
    assert made["namespaces"] == ["team", "other"]
    assert made["scopes"] == ["infer", "read"]
    listed = world.client.get("/v1/keys")
    assert made["secret"] not in listed.text
    assert made["id"] in [key["id"] for key in listed.json()["data"]]


def test_keys_have_pages_and_a_client_that_knows_none_gets_all(world: World) -> None:
    """An admin of some namespaces turns pages of its own keys only."""
    mine = make(world, namespaces=["team", "other"], scopes=["admin"]).json()
    made = [make(world, namespaces=["team"] if number % 2 else None).json()["id"] for number in range(5)]
    for secret in (world.admin, mine["secret"]):
        headers = world.headers(secret)
        everything = world.client.get("/v1/keys", headers=headers).json()
        assert everything["next_cursor"] is None
        first = world.client.get("/v1/keys", params={"limit": 2}, headers=headers).json()
        rest = world.client.get("/v1/keys", params={"limit": 90, "cursor": first["next_cursor"]}, headers=headers)
        assert len(first["data"]) == 2
        assert first["data"] + rest.json()["data"] == everything["data"]
    seen = {one["id"] for one in everything["data"]}
    assert {mine["id"], *made[1::2]} <= seen
    assert seen.isdisjoint(made[::2])
    for wrong in ({"cursor": "nonsense"}, {"limit": 10_000}):
        assert world.client.get("/v1/keys", params=wrong).status_code == 400
    assert world.client.get("/v1/audit", params={"cursor": "nonsense"}).status_code == 400


def test_a_revoked_key_is_refused_from_the_next_request_on(world: World) -> None:
    made = make(world).json()
    headers = world.headers(made["secret"])
    assert world.client.get("/v1/adapters", headers=headers).status_code == 200
    revoked = answered(world.client.delete(f"/v1/keys/{made['id']}"))
    assert revoked["revoked_at"] is not None
    assert world.client.get("/v1/adapters", headers=headers).status_code == 401
    again = world.client.delete(f"/v1/keys/{made['id']}")
    assert again.json()["revoked_at"] == revoked["revoked_at"]


def ahead(**gap: float) -> str:
    return (datetime.now(UTC) + timedelta(**gap)).isoformat()


def test_the_last_admin_key_of_all_namespaces_that_lasts_is_not_revoked(world: World) -> None:
    lasting = [
        one["id"]
        for one in world.client.get("/v1/keys").json()["data"]
        if one["namespaces"] is None and "admin" in one["scopes"] and not one["revoked_at"] and not one["expires_at"]
    ]
    for others in ({"expires_at": ahead(days=1)}, {"namespaces": ["team"]}):
        assert make(world, scopes=["admin"], **others).status_code == 201
    for id in lasting[1:]:
        assert world.client.delete(f"/v1/keys/{id}").status_code == 200
    answer = world.client.delete(f"/v1/keys/{lasting[0]}")
    assert "the last one with scope 'admin' and all namespaces" in refusal(answer, 409)
    assert world.client.get("/v1/keys").status_code == 200


def test_a_key_that_expires_makes_none_that_outlive_it(world: World) -> None:
    admin = make(world, scopes=["admin"], expires_at=ahead(days=2)).json()["secret"]
    assert make(world, admin).status_code == 403
    assert make(world, admin, expires_at=ahead(days=3)).status_code == 403
    assert make(world, admin, expires_at=ahead(days=1)).status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        {"scopes": []},
        {"scopes": ["root"]},
        {"name": ""},
        {"name": "a\0b"},
        {"namespaces": []},
        {"namespaces": ["base"]},
        {"prefix": "sk-soup-mine"},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "2999-01-01T00:00:00Z"},
        {"expires_at": "9999-12-31T23:59:59-14:00"},
        {"expires_at": "0001-01-01T00:00:00+14:00"},
        {"expires_at": "2030-01-01T00:00:00"},
        {"expires_at": 2000000000},
        {"expires_at": "2000000000"},
    ],
)
def test_a_bad_key_is_refused(world: World, body: dict[str, Any]) -> None:
    assert make(world, **body).status_code == 400


def test_an_admin_of_some_namespaces_cannot_reach_beyond_them(world: World) -> None:
    admin = world.key(["admin"], ["team"])
    everything = make(world).json()
    for wider in (None, ["other"], ["team", "other"]):
        assert make(world, admin, namespaces=wider).status_code == 403
    own = answered(make(world, admin, namespaces=["team"]), 201)
    headers = world.headers(admin)
    seen = world.client.get("/v1/keys", headers=headers).json()["data"]
    assert all(key["namespaces"] == ["team"] for key in seen)
    for id in (everything["id"], "key-nothing"):
        assert world.client.delete(f"/v1/keys/{id}", headers=headers).status_code == 404
    assert world.client.delete(f"/v1/keys/{own['id']}", headers=headers).status_code == 200


class TestAuditFilters:
    def subjects(self, world: World, headers: dict[str, str] | None = None, **filters: str) -> list[str]:
        answer = answered(world.client.get("/v1/audit", params={"limit": 200, **filters}, headers=headers))
        return [entry["subject"] for entry in answer["data"]]

    def test_each_narrows_and_all_together(self, world: World) -> None:
        first, second = make(world, name="one").json()["id"], make(world, name="two").json()["id"]
        world.client.delete(f"/v1/keys/{first}")
        world.push("filters/adapter", seed=71)
        assert self.subjects(world, subject=first) == [first, first]
        assert self.subjects(world, subject=first, action="key.revoke") == [first]
        assert {first, second} <= set(self.subjects(world, action="key."))
        assert not any("/" in subject for subject in self.subjects(world, action="key."))
        assert self.subjects(world, action="key") == self.subjects(world, action="%.") == []
        assert self.subjects(world, action="KEY.") == []
        assert set(self.subjects(world, namespace="filters")) == {"filters/adapter@1"}
        mine = world.headers(world.key(["admin"], ["filters"]))
        assert self.subjects(world, headers=mine) == self.subjects(world, namespace="filters")
        assert self.subjects(world, headers=mine, subject=second) == []
        assert self.subjects(world, key_id="nobody") == []

    def test_moments_include_the_first_and_not_the_last(self, world: World) -> None:
        id = make(world, name="timed").json()["id"]
        (entry,) = world.client.get("/v1/audit", params={"subject": id}).json()["data"]
        assert self.subjects(world, subject=id, since=entry["at"]) == [id]
        assert self.subjects(world, subject=id, until=entry["at"]) == []
        assert self.subjects(world, subject=id, since="2000-01-01T00:00:00Z", until="9999-12-31T00:00:00Z") == [id]

    @pytest.mark.parametrize("since", ["2026-01-01T00:00:00", "1767225600"])
    def test_a_moment_without_its_offset_is_none(self, world: World, since: str) -> None:
        answer = world.client.get("/v1/audit", params={"since": since})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since")
