"""Keys over HTTP after they are made: changed, rotated, last used; and that one admin key always stays."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.service.answers import answered
from tests.service.servers import World


def make(world: World, scopes: tuple[str, ...] = ("read",), namespaces: list[str] | None = None) -> dict[str, Any]:
    body = {"name": "k", "scopes": list(scopes), "namespaces": namespaces}
    return dict(answered(world.client.post("/v1/keys", json=body), 201))


def change(world: World, id: str, by: str | None = None, **body: Any) -> Any:
    return world.client.patch(f"/v1/keys/{id}", json=body, headers=world.headers(by or world.admin))


def rotate(world: World, id: str, by: str | None = None, **body: Any) -> Any:
    return world.client.post(f"/v1/keys/{id}/rotate", json=body, headers=world.headers(by or world.admin))


def status(world: World, secret: str, path: str = "/v1/adapters") -> int:
    return int(world.client.get(path, headers=world.headers(secret)).status_code)


class TestChange:
    def test_it_holds_from_the_next_request_on_and_is_audited(self, world: World) -> None:
        key = make(world, namespaces=["acme"])
        body = answered(change(world, key["id"], scopes=["infer", "infer"], name="other", namespaces=["acme", "beta"]))
        assert (body["scopes"], body["name"], body["namespaces"]) == (["infer"], "other", ["acme", "beta"])
        assert "secret" not in body
        assert status(world, key["secret"]) == 403
        change(world, key["id"], scopes=["read"], namespaces=None)
        assert status(world, key["secret"], "/v1/namespaces/anything") == 200
        newest, older = world.client.get(f"/v1/audit?action=key.change&subject={key['id']}").json()["data"]
        assert newest["detail"]["before"] == {"scopes": ["infer"], "namespaces": ["acme", "beta"]}
        assert (older["detail"]["name"], older["detail"]["before"]["name"]) == ("other", "k")

    def test_an_end_comes_and_goes(self, world: World) -> None:
        key = make(world)
        end = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        assert change(world, key["id"], expires_at=end).json()["expires_at"] is not None
        assert change(world, key["id"], name="same").json()["expires_at"] is not None
        assert change(world, key["id"], expires_at=None).json()["expires_at"] is None

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"name": None},
            {"scopes": []},
            {"namespaces": []},
            {"namespaces": ["base"]},
            {"expires_at": "2020-01-01T00:00:00Z"},
            {"secret": "x"},
        ],
    )
    def test_what_no_key_can_be_is_refused(self, world: World, body: dict[str, Any]) -> None:
        assert change(world, make(world)["id"], **body).status_code == 400

    def test_no_admin_gives_more_than_it_has(self, world: World) -> None:
        own = make(world, ("admin",), ["acme"])
        ours, foreign = make(world, namespaces=["acme"]), make(world, namespaces=["beta"])
        assert change(world, ours["id"], own["secret"], scopes=["write"]).status_code == 200
        for wider in (None, ["acme", "beta"]):
            assert change(world, ours["id"], own["secret"], namespaces=wider).status_code == 403
            assert change(world, own["id"], own["secret"], namespaces=wider).status_code == 403
        for id in (foreign["id"], "key-0000000000000000"):
            assert change(world, id, own["secret"], name="mine").status_code == 404

    def test_a_key_that_expires_changes_none_that_outlives_it(self, world: World) -> None:
        """Else it would live on in the other: as an admin, or by knowing that one's new secret."""
        end = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        guest = make(world, ("admin",))
        change(world, guest["id"], expires_at=end)
        lasting, other = make(world), make(world)
        change(world, other["id"], expires_at=end)
        assert change(world, lasting["id"], guest["secret"], scopes=["admin"]).status_code == 403
        assert rotate(world, lasting["id"], guest["secret"]).status_code == 403
        assert change(world, guest["id"], guest["secret"], expires_at=None).status_code == 403
        assert change(world, other["id"], guest["secret"], scopes=["infer"]).status_code == 200
        assert rotate(world, other["id"], guest["secret"]).status_code == 200
        assert rotate(world, guest["id"], guest["secret"]).status_code == 200

    def test_what_has_ended_is_not_changed(self, world: World) -> None:
        key = make(world)
        world.client.delete(f"/v1/keys/{key['id']}")
        assert change(world, key["id"], name="back").status_code == 409
        assert rotate(world, key["id"]).status_code == 409


class TestRotation:
    def test_the_old_secret_ends_and_the_key_stays(self, world: World) -> None:
        key = make(world, namespaces=["acme"])
        new = answered(rotate(world, key["id"]))
        assert new["secret"] != key["secret"]
        assert new["prefix"] == new["secret"][:12]
        assert {name: new[name] for name in ("id", "name", "scopes", "namespaces", "created_at")} == {
            name: key[name] for name in ("id", "name", "scopes", "namespaces", "created_at")
        }
        assert (status(world, key["secret"]), status(world, new["secret"])) == (401, 200)
        said = world.client.get("/v1/adapters", headers=world.headers(key["secret"])).json()["error"]["message"]
        assert "replaced" in said
        (entry,) = world.client.get(f"/v1/audit?action=key.rotate&subject={key['id']}").json()["data"]
        assert new["secret"] not in str(entry)

    def test_every_key_may_for_itself(self, world: World) -> None:
        key, other = make(world, ("infer",), ["acme"]), make(world, ("write",), ["acme"])
        assert rotate(world, other["id"], key["secret"]).status_code == 403
        new = rotate(world, key["id"], key["secret"]).json()
        assert rotate(world, key["id"], key["secret"]).status_code == 401
        assert rotate(world, key["id"], new["secret"]).status_code == 200

    @pytest.mark.parametrize("grace", [-1, 604_801, True])
    def test_a_grace_that_is_none_is_refused(self, world: World, grace: Any) -> None:
        assert rotate(world, make(world)["id"], grace_seconds=grace).status_code == 400

    def test_the_file_of_this_machine_goes_along(self, world: World) -> None:
        path = world.runtime.settings.admin_key_path
        (admin,) = [k for k in world.client.get("/v1/keys").json()["data"] if world.admin.startswith(k["prefix"])]
        new = rotate(world, admin["id"], grace_seconds=3600).json()
        assert path.read_text().strip() == new["secret"]
        assert status(world, new["secret"], "/v1/keys") == 200


class TestPostgreSQL:
    DATABASES = ("postgresql",)  # where transactions run beside each other

    def test_of_two_that_take_the_last_admins_away_one_is_refused(self, world: World) -> None:
        """At the same time, in every mix of changing and revoking: one admin key for all namespaces stays."""
        end = (datetime.now(UTC) + timedelta(days=1)).isoformat()
        changes: dict[str, Any] = {"scopes": ["read"], "namespaces": ["acme"], "expires_at": end}
        keep = {k["id"] for k in world.client.get("/v1/keys").json()["data"] if k["revoked_at"] is None}
        start = threading.Barrier(2)

        def take(key: dict[str, Any], how: str) -> int:
            start.wait()
            if how == "revoke":
                headers = world.headers(key["secret"])
                return int(world.client.delete(f"/v1/keys/{key['id']}", headers=headers).status_code)
            return int(change(world, key["id"], key["secret"], **{how: changes[how]}).status_code)

        for hows in (("scopes", "revoke"), ("namespaces", "expires_at"), ("revoke", "revoke")):
            pair = [make(world, ("admin",)) for _ in range(2)]
            with world.registry.database.read() as catalogue:
                others = {one.id for one in catalogue.keys.admins()} - {one["id"] for one in pair}
            for id in others:
                assert change(world, id, pair[0]["secret"], scopes=["read"]).status_code == 200
            with ThreadPoolExecutor(2) as pool:
                assert sorted(pool.map(take, pair, hows)) == [200, 409], hows
            with world.registry.database.read() as catalogue:
                (admin,) = catalogue.keys.admins()
            (left,) = [one for one in pair if one["id"] == admin.id]
            for id in keep:
                change(world, id, left["secret"], scopes=["admin"], namespaces=None, expires_at=None)
