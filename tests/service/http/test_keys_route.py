"""Keys and namespaces over HTTP: made, listed, changed, rotated, revoked; one admin key always stays; and the audit."""

from __future__ import annotations

import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from registry.catalogue.keys import Keys
from service.access.keys import replace_admin_secret, secret_sha256
from service.http.routes import keys as keys_module
from tests.postgres import KINDS
from tests.service.answers import answered, refusal, refusal_with_code
from tests.service.servers import World

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # journeys ask each kind what these do


def make(world: World, secret: str | None = None, **body: Any) -> Any:
    headers = {} if secret is None else world.headers(secret)
    return world.client.post(
        "/v1/keys", json={"name": "k", "namespaces": None, "scopes": ["read"], **body}, headers=headers
    )


def test_the_secret_is_shown_once(world: World) -> None:
    created = answered(make(world, namespaces=["team", "team", "other"], scopes=["infer", "read"]), 201)
    assert created["secret"].startswith(created["prefix"])
    assert len(created["prefix"]) < 20
    assert (created["namespaces"], created["scopes"]) == (["team", "other"], ["infer", "read"])
    listed = world.client.get("/v1/keys")
    assert created["secret"] not in listed.text
    assert created["id"] in [key["id"] for key in listed.json()["data"]]


def test_keys_have_pages_and_a_client_that_knows_none_gets_all(world: World) -> None:
    """An admin of some namespaces turns pages of its own keys only."""
    mine = make(world, namespaces=["team", "other"], scopes=["admin"]).json()
    created_ids = [make(world, namespaces=["team"] if number % 2 else None).json()["id"] for number in range(5)]
    for secret in (world.admin, mine["secret"]):
        headers = world.headers(secret)
        everything = world.client.get("/v1/keys", headers=headers).json()
        assert everything["next_cursor"] is None
        first = world.client.get("/v1/keys", params={"limit": 2}, headers=headers).json()
        rest = world.client.get("/v1/keys", params={"limit": 90, "cursor": first["next_cursor"]}, headers=headers)
        assert len(first["data"]) == 2
        assert first["data"] + rest.json()["data"] == everything["data"]
    visible_ids = {key["id"] for key in everything["data"]}
    assert {mine["id"], *created_ids[1::2]} <= visible_ids
    assert visible_ids.isdisjoint(created_ids[::2])
    foreign = base64.urlsafe_b64encode(f"after:{created_ids[0]}".encode()).decode()
    for wrong in ({"cursor": "nonsense"}, {"cursor": foreign}, {"limit": 10_000}):
        assert world.client.get("/v1/keys", params=wrong, headers=headers).status_code == 400
    assert world.client.get("/v1/audit", params={"cursor": "nonsense"}).status_code == 400


def ahead(**gap: float) -> str:
    return (datetime.now(UTC) + timedelta(**gap)).isoformat()


def test_the_last_admin_key_of_all_namespaces_that_lasts_is_not_revoked(world: World) -> None:
    lasting = [
        key["id"]
        for key in world.client.get("/v1/keys").json()["data"]
        if key["namespaces"] is None and "admin" in key["scopes"] and not key["revoked_at"] and not key["expires_at"]
    ]
    for restriction in ({"expires_at": ahead(days=1)}, {"namespaces": ["team"]}):
        assert make(world, scopes=["admin"], **restriction).status_code == 201
    for id in lasting[1:]:
        assert world.client.delete(f"/v1/keys/{id}").status_code == 200
    answer = world.client.delete(f"/v1/keys/{lasting[0]}")
    assert "the last one with scope 'admin' and all namespaces" in refusal(answer, 409)


def test_a_key_that_expires_makes_none_that_outlive_it(world: World) -> None:
    admin = make(world, scopes=["admin"], expires_at=ahead(days=2)).json()["secret"]
    ends: tuple[dict[str, str], ...] = ({}, {"expires_at": ahead(days=3)}, {"expires_at": ahead(days=1)})
    assert [make(world, admin, **end).status_code for end in ends] == [403, 403, 201]


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


def test_an_admin_of_some_namespaces_makes_and_revokes_keys_of_them(world: World) -> None:
    admin = world.key(["admin"], ["team"])
    assert make(world, admin, namespaces=["team", "other"]).status_code == 403
    key = answered(make(world, admin, namespaces=["team"]), 201)
    assert world.client.delete(f"/v1/keys/{key['id']}", headers=world.headers(admin)).status_code == 200


# --- the audit ------------------------------------------------------------------------------------


def subjects(world: World, headers: dict[str, str] | None = None, **filters: str) -> list[str]:
    answer = answered(world.client.get("/v1/audit", params={"limit": 200, **filters}, headers=headers))
    return [entry["subject"] for entry in answer["data"]]


def test_a_key_that_is_revoked_again_stays_as_it_was(world: World) -> None:
    id = make(world).json()["id"]
    first, second = (answered(world.client.delete(f"/v1/keys/{id}")) for _ in range(2))
    assert first == second
    assert subjects(world, subject=id, action="key.revoke") == [id]


def test_each_filter_of_the_audit_narrows_it_and_all_together(world: World) -> None:
    first, second = make(world, name="one").json()["id"], make(world, name="two").json()["id"]
    world.client.delete(f"/v1/keys/{first}")
    world.push("filters/adapter", seed=71)
    assert subjects(world, subject=first) == [first, first]
    assert subjects(world, subject=first, action="key.revoke") == [first]
    assert {first, second} <= set(subjects(world, action="key."))
    assert not any("/" in subject for subject in subjects(world, action="key."))
    for action in ("key", "%.", "KEY."):
        assert subjects(world, action=action) == []
    assert set(subjects(world, namespace="filters")) == {"filters/adapter@1"}
    mine = world.headers(world.key(["admin"], ["filters"]))
    assert subjects(world, headers=mine) == subjects(world, namespace="filters")
    assert subjects(world, headers=mine, subject=second) == []
    assert subjects(world, key_id="nobody") == []


def test_moments_of_the_audit_include_the_first_and_not_the_last(world: World) -> None:
    id = make(world, name="timed").json()["id"]
    (entry,) = world.client.get("/v1/audit", params={"subject": id}).json()["data"]
    assert subjects(world, subject=id, since=entry["at"]) == [id]
    assert subjects(world, subject=id, until=entry["at"]) == []
    assert subjects(world, subject=id, since="2000-01-01T00:00:00Z", until="9999-12-31T00:00:00Z") == [id]


@pytest.mark.parametrize("since", ["2026-01-01T00:00:00", "1767225600"])
def test_a_moment_without_its_offset_is_none(world: World, since: str) -> None:
    answer = world.client.get("/v1/audit", params={"since": since})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since")


def change(world: World, id: str, by: str | None = None, **body: Any) -> Any:
    return world.client.patch(f"/v1/keys/{id}", json=body, headers=world.headers(by or world.admin))


def rotate(world: World, id: str, by: str | None = None, **body: Any) -> Any:
    return world.client.post(f"/v1/keys/{id}/rotate", json=body, headers=world.headers(by or world.admin))


def status(world: World, secret: str, path: str = "/v1/adapters", method: str = "GET") -> int:
    return int(world.client.request(method, path, headers=world.headers(secret)).status_code)


# --- change ---------------------------------------------------------------------------------------


def test_a_change_holds_from_the_next_request_on_and_is_audited(world: World) -> None:
    key = make(world, namespaces=["acme"]).json()
    body = answered(change(world, key["id"], scopes=["infer", "infer"], name="other", namespaces=["acme", "beta"]))
    assert (body["scopes"], body["name"], body["namespaces"]) == (["infer"], "other", ["acme", "beta"])
    assert "secret" not in body
    assert status(world, key["secret"]) == 403
    change(world, key["id"], scopes=["read"], namespaces=None)
    assert status(world, key["secret"], "/v1/namespaces/anything") == 200
    newest, older = world.client.get(f"/v1/audit?action=key.change&subject={key['id']}").json()["data"]
    assert newest["detail"]["before"] == {"scopes": ["infer"], "namespaces": ["acme", "beta"]}
    assert (older["detail"]["name"], older["detail"]["before"]["name"]) == ("other", "k")


def test_the_end_of_a_key_comes_and_goes(world: World) -> None:
    key = make(world).json()
    assert change(world, key["id"], expires_at=ahead(days=1)).json()["expires_at"] is not None
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
def test_a_change_to_what_no_key_can_be_is_refused(world: World, body: dict[str, Any]) -> None:
    assert change(world, make(world).json()["id"], **body).status_code == 400


def test_no_admin_gives_more_than_it_has(world: World) -> None:
    admin = make(world, scopes=["admin"], namespaces=["acme"]).json()
    ours = make(world, namespaces=["acme"]).json()
    assert change(world, ours["id"], admin["secret"], scopes=["write"]).status_code == 200
    for wider in (None, ["acme", "beta"]):
        assert change(world, ours["id"], admin["secret"], namespaces=wider).status_code == 403
        assert change(world, admin["id"], admin["secret"], namespaces=wider).status_code == 403


def test_a_key_that_expires_changes_none_that_outlives_it(world: World) -> None:
    """Else it would live on in the other: as an admin, or by knowing that one's new secret."""
    end = ahead(days=1)
    guest = make(world, scopes=["admin"], expires_at=end).json()
    lasting, expiring = make(world).json(), make(world, expires_at=end).json()
    assert change(world, lasting["id"], guest["secret"], scopes=["admin"]).status_code == 403
    assert change(world, guest["id"], guest["secret"], expires_at=None).status_code == 403
    assert change(world, expiring["id"], guest["secret"], scopes=["infer"]).status_code == 200
    rotations = [rotate(world, key["id"], guest["secret"]) for key in (lasting, expiring, guest)]
    assert [answer.status_code for answer in rotations] == [403, 200, 200]


def test_only_a_change_of_a_lasting_admin_looks_for_the_other_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of all admins would be read under the write lock."""
    admin, reader = make(world, scopes=["admin"]).json(), make(world, scopes=["read"]).json()
    listing = Mock(side_effect=Keys.admins)
    monkeypatch.setattr(Keys, "admins", lambda keys: listing(keys))
    assert change(world, reader["id"], name="renamed").status_code == 200
    assert world.client.delete(f"/v1/keys/{reader['id']}").status_code == 200
    assert listing.call_count == 0
    assert world.client.delete(f"/v1/keys/{admin['id']}").status_code == 200
    assert listing.call_count == 1


def test_a_key_that_has_ended_is_not_changed(world: World) -> None:
    key = make(world).json()
    world.client.delete(f"/v1/keys/{key['id']}")
    assert change(world, key["id"], name="back").status_code == 409
    assert rotate(world, key["id"]).status_code == 409


# --- rotation -------------------------------------------------------------------------------------


def test_a_rotation_waits_for_another_only_so_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    key = answered(make(world), 201)
    monkeypatch.setattr(keys_module, "BUSY_SECONDS", 0.0)
    with world.runtime.services.rotating_keys:
        assert "try again" in refusal(rotate(world, key["id"]), 429)
    answered(rotate(world, key["id"]))


def test_a_rotation_ends_the_old_secret_and_the_key_stays(world: World) -> None:
    key = make(world, namespaces=["acme"]).json()
    new = answered(rotate(world, key["id"]))
    assert new["secret"] != key["secret"]
    assert new["prefix"] == new["secret"][:12]
    assert {name: new[name] for name in ("id", "name", "scopes", "namespaces", "created_at")} == {
        name: key[name] for name in ("id", "name", "scopes", "namespaces", "created_at")
    }
    assert status(world, new["secret"]) == 200
    assert "replaced" in refusal(world.client.get("/v1/adapters", headers=world.headers(key["secret"])), 401)
    (entry,) = world.client.get(f"/v1/audit?action=key.rotate&subject={key['id']}").json()["data"]
    assert new["secret"] not in str(entry)


def test_every_key_may_rotate_itself(world: World) -> None:
    key, second_key = (make(world, scopes=[scope], namespaces=["acme"]).json() for scope in ("infer", "write"))
    assert rotate(world, second_key["id"], key["secret"]).status_code == 403
    new = rotate(world, key["id"], key["secret"]).json()
    assert rotate(world, key["id"], key["secret"]).status_code == 401
    assert rotate(world, key["id"], new["secret"]).status_code == 200


@pytest.mark.parametrize("grace", [-1, 604_801, True])
def test_a_grace_that_is_none_is_refused(world: World, grace: Any) -> None:
    assert rotate(world, make(world).json()["id"], grace_seconds=grace).status_code == 400


def test_the_file_of_this_machine_goes_along(world: World) -> None:
    path = world.runtime.settings.admin_key_path
    (admin,) = [k for k in world.client.get("/v1/keys").json()["data"] if world.admin.startswith(k["prefix"])]
    new = rotate(world, admin["id"], grace_seconds=3600).json()
    assert path.read_text().strip() == new["secret"]
    assert status(world, new["secret"], "/v1/keys") == 200


def test_of_two_rotations_at_once_the_file_has_the_later_secret(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.runtime.settings.admin_key_path
    (admin,) = [k for k in world.client.get("/v1/keys").json()["data"] if path.read_text().startswith(k["prefix"])]
    is_first, has_overtaken = threading.Lock(), threading.Event()

    def write_late(*arguments: Any) -> bool:
        if is_first.acquire(blocking=False):
            pool.submit(rotate, world, admin["id"], grace_seconds=3600).add_done_callback(lambda _: has_overtaken.set())
            has_overtaken.wait(1)  # as long as the second rotation needs, unless it has to wait for this one
        return replace_admin_secret(*arguments)

    monkeypatch.setattr(keys_module, "replace_admin_secret", write_late)
    with ThreadPoolExecutor(1) as pool:
        assert rotate(world, admin["id"], grace_seconds=3600).status_code == 200
    with world.registry.database.read() as catalogue:
        assert catalogue.keys.secret_of(admin["id"]) == secret_sha256(path.read_text().strip())


class TestPostgreSQL:
    DATABASES = ("postgresql",)  # where transactions run beside each other

    def test_of_two_that_take_the_last_admins_away_one_is_refused(self, world: World) -> None:
        """At the same time, in every mix of changing and revoking: one admin key for all namespaces stays."""
        changes: dict[str, Any] = {"scopes": ["read"], "namespaces": ["acme"], "expires_at": ahead(days=1)}
        keep = {k["id"] for k in world.client.get("/v1/keys").json()["data"] if k["revoked_at"] is None}
        start = threading.Barrier(2)

        def take(key: dict[str, Any], action: str) -> int:
            start.wait()
            if action == "revoke":
                return status(world, key["secret"], f"/v1/keys/{key['id']}", "DELETE")
            return int(change(world, key["id"], key["secret"], **{action: changes[action]}).status_code)

        for actions in (("scopes", "revoke"), ("namespaces", "expires_at"), ("revoke", "revoke")):
            pair = [make(world, scopes=["admin"]).json() for _ in range(2)]
            with world.registry.database.read() as catalogue:
                other_ids = {row.id for row in catalogue.keys.admins()} - {key["id"] for key in pair}
            for id in other_ids:
                assert change(world, id, pair[0]["secret"], scopes=["read"]).status_code == 200
            with ThreadPoolExecutor(2) as pool:
                assert sorted(pool.map(take, pair, actions)) == [200, 409], actions
            with world.registry.database.read() as catalogue:
                (admin,) = catalogue.keys.admins()
            (remaining,) = [key for key in pair if key["id"] == admin.id]
            for id in keep:
                change(world, id, remaining["secret"], scopes=["admin"], namespaces=None, expires_at=None)


# --- settings of namespaces -----------------------------------------------------------------------


SAMPLE = {"texts": [f"passage number {number} of a novel domain" for number in range(30)]}


def change_namespace(world: World, ns: str, tuning: str, secret: str | None = None, **headers: str) -> Any:
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
    changed = answered(change_namespace(world, "acme", "forbid", **{"x-request-id": "r-78"}))
    assert changed["tuning"] == "forbid"
    assert world.client.get("/v1/namespaces/acme").json() == changed
    (entry, *_) = world.client.get("/v1/audit", headers=world.headers(world.key(["admin"], ["acme"]))).json()["data"]
    assert (entry["action"], entry["subject"], entry["request_id"]) == ("namespace.change", "acme/", "r-78")
    assert entry["detail"] == {"tuning": "forbid", "before": {"tuning": "allow"}}


@pytest.mark.parametrize(
    ("scopes", "namespaces", "status"),
    [
        (["read", "write", "infer"], ["team"], 403),
        (["admin"], ["other"], 404),
        (["admin"], ["team"], 200),
        (["admin"], None, 200),
    ],
)
def test_only_its_admins_change_it(world: World, scopes: list[str], namespaces: list[str] | None, status: int) -> None:
    assert change_namespace(world, "team", "default", world.key(scopes, namespaces)).status_code == status


def test_of_two_changes_at_the_same_time_none_is_lost(world: World) -> None:
    etag = world.client.get("/v1/namespaces/raced").json()["etag"]
    first = answered(change_namespace(world, "raced", "forbid", **{"if-match": f'"{etag}"'}))
    assert first["etag"] in refusal(change_namespace(world, "raced", "default", **{"if-match": f'"{etag}"'}), 412)
    assert change_namespace(world, "raced", "default", **{"if-match": "*"}).status_code == 200


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
    assert change_namespace(world, ns, "forbid").status_code == 400


@pytest.mark.parametrize("name", ["strict/soup", None])
def test_where_tuning_is_forbidden_no_job_is_made(world: World, name: str | None) -> None:
    assert change_namespace(world, "strict", "forbid").status_code == 200
    writer = world.headers(world.key(["read", "write"], ["strict"]))
    digests_before = set(world.registry.blobs.digests())
    body = {"sample": SAMPLE, "effort": "tune", **({} if name is None else {"name": name})}
    world.push("strict/one", seed=3)
    answer = world.client.post("/v1/soups", json=body, headers=writer)
    assert "'strict' forbids" in refusal_with_code(answer, 403, "forbidden")
    assert answer.json()["error"]["param"] == "effort"
    assert world.client.get("/v1/jobs?kind=cook", headers=writer).json()["data"] == []
    assert len(set(world.registry.blobs.digests()) - digests_before) <= 1, "the adapter's, and no request's"


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
    answer = world.client.put(f"{ALIASES}/prod", json={"version": 1}, headers=writer)  # nor before it is there
    assert "'prod' is protected in namespace 'guarded'" in refusal(answer, 403)

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
