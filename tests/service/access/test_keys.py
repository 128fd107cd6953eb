"""Keys: scopes, namespaces, revocation, and the admin key's file."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from registry.catalogue import Database
from registry.errors import Busy, Conflict, InvalidParameter, Unauthenticated
from service.access import keys
from service.access.key_watch import KeyWatch
from service.access.keys import (
    Principal,
    ensure_admin_key,
    new_secret,
    replace_admin_secret,
    secret_sha256,
)
from service.access.sessions import MOST_OF_A_KEY, Sessions

ON_DATABASES = ("sqlite",)  # tests of the catalogue and of sessions ask each kind what these do
BOOTSTRAP = "sk-soup-" + "b" * 43


def add(database: Database, secret: str, *scopes: str, namespaces: tuple[str, ...] | None = None, **more: Any) -> str:
    """A new key with these scopes, or `read`; gives its id."""
    digest = secret_sha256(secret)
    with database.write() as catalogue:
        return catalogue.keys.add(
            "k", digest, namespaces=namespaces, scopes=frozenset(scopes or ("read",)), prefix=secret[:12], **more
        ).id


def authenticate(database: Database, header: str | None, *, watch: KeyWatch | None = None, **more: Any) -> Principal:
    return keys.authenticate(database, header, watch=watch or KeyWatch(database), **more)


def revoke(database: Database, key_id: str | None = None) -> None:
    """Revoke a key, or the only one there is."""
    with database.write() as catalogue:
        catalogue.keys.revoke(key_id or catalogue.keys.list()[0].id)


def audited(database: Database, count: int, **filters: Any) -> list[Any]:
    """The newest entries of the audit log."""
    with database.read() as catalogue:
        return list(catalogue.audit.list(None, limit=count, **filters).rows)


def stored_sessions(database: Database) -> int:
    with database.engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar_one())


def test_a_key_gives_its_principal(database: Database) -> None:
    secret = new_secret()
    key_id = add(database, secret, "read", "infer", namespaces=("team",))
    for header in (f"Bearer {secret}", f"bearer  {secret} "):
        assert authenticate(database, header) == Principal(key_id, ("team",), frozenset({"read", "infer"}))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic c2s6eA==",
        "Bearer sk-soup-short",
        f"Bearer {BOOTSTRAP}",
        f"Bearer {BOOTSTRAP}\n",
        f"Bearer {BOOTSTRAP}x",
        "Bearer sk-soup-" + "é" * 43,
        BOOTSTRAP,
    ],
)
def test_no_key_and_unknown_keys_are_401(database: Database, header: str | None) -> None:
    with pytest.raises(Unauthenticated):
        authenticate(database, header)


@pytest.mark.parametrize(
    ("secret", "data"),
    [
        ("sk-é", b"sk-\xc3\xa9"),
        ("a\udcff", b"a\xed\xb3\xbf"),  # as an environment gives a byte that is no UTF-8
        ("a\ud800", b"a\xed\xa0\x80"),
        ("a\udc7f\udcff", b"a\xed\xb1\xbf\xed\xb3\xbf"),
    ],
)
def test_anything_is_hashed(secret: str, data: bytes) -> None:
    assert secret_sha256(secret) == hashlib.sha256(data).hexdigest()


def test_a_key_works_until_it_expires(database: Database) -> None:
    secret, end = new_secret(), datetime(2031, 5, 4, 12, 30, tzinfo=UTC)
    add(database, secret, expires_at=end)
    principal = authenticate(database, f"Bearer {secret}", clock=lambda: end - timedelta(microseconds=1))
    assert principal.expires_at == end
    with pytest.raises(Unauthenticated, match="expired on 2031-05-04 at 12:30 UTC"):
        authenticate(database, f"Bearer {secret}", clock=lambda: end)


def test_a_start_with_an_expired_key_needs_another_that_lasts(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, secret, moment = tmp_path / "admin.key", new_secret(), datetime.now(UTC)
    add(database, secret, "admin", expires_at=moment - timedelta(days=1))
    add(database, new_secret(), "admin", expires_at=moment + timedelta(days=1))
    with pytest.raises(Conflict, match="SOUP_BOOTSTRAP_KEY expired"):
        ensure_admin_key(database, path, secret)
    add(database, new_secret(), "admin")
    assert ensure_admin_key(database, path, secret) == path
    assert "Other admin keys work." in caplog.text


def test_the_secret_is_not_in_the_database(database: Database, tmp_path: Path) -> None:
    secret = new_secret()
    add(database, secret)
    database.close()
    for file in tmp_path.glob("soup.db*"):
        assert secret.encode() not in file.read_bytes()


# --- the admin key --------------------------------------------------------------------------------


def admin_of(database: Database, path: Path) -> Principal:
    return authenticate(database, f"Bearer {path.read_text().strip()}")


def test_the_first_start_writes_a_private_file_and_later_ones_keep_it(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "data" / "admin.key"
    old = os.umask(0)
    try:
        assert ensure_admin_key(database, path) == path
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = path.read_text()
    ensure_admin_key(database, path)
    assert path.read_text() == first
    admin = admin_of(database, path)
    assert admin.namespaces is None
    assert admin.has("admin")
    with database.read() as catalogue:
        assert len(catalogue.keys.list()) == 1
    assert list(path.parent.iterdir()) == [path]


def test_a_crash_between_file_and_row_is_mended(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    path.write_text(BOOTSTRAP + "\n")
    ensure_admin_key(database, path)
    assert path.read_text().strip() == BOOTSTRAP
    assert admin_of(database, path).has("admin")


def test_a_lost_file_gets_a_new_key(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    ensure_admin_key(database, path)
    first = path.read_text()
    path.unlink()
    ensure_admin_key(database, path)
    assert path.read_text() != first
    assert admin_of(database, path).has("admin")


@pytest.mark.parametrize("bad", ["hunter2", "sk-soup-", "sk-soup-" + "b" * 42, "sk-soup-" + "b" * 43 + "\n"])
def test_a_weak_bootstrap_secret_is_refused(database: Database, tmp_path: Path, bad: str) -> None:
    with pytest.raises(InvalidParameter, match="SOUP_BOOTSTRAP_KEY") as caught:
        ensure_admin_key(database, tmp_path / "admin.key", bad)
    assert bad not in str(caught.value) or bad == "sk-soup-"
    assert not (tmp_path / "admin.key").exists()


def test_a_file_that_holds_something_else_is_left_alone(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    path.write_text("my shopping list")
    with pytest.raises(InvalidParameter, match="does not hold a key"):
        ensure_admin_key(database, path)
    assert path.read_text() == "my shopping list"


@pytest.mark.parametrize("bootstrap", [True, False])
def test_a_revoked_first_key_does_not_stop_the_start_where_there_is_another(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, bootstrap: bool
) -> None:
    path, secret = tmp_path / "admin.key", new_secret()
    bootstrap_key = secret if bootstrap else None
    ensure_admin_key(database, path, bootstrap_key)
    revoke(database)
    add(database, new_secret(), "admin", namespaces=("acme",))
    add(database, new_secret(), "read")
    advice = "SOUP_BOOTSTRAP_KEY was revoked; set another" if bootstrap else r"admin\.key was revoked; remove that file"
    with pytest.raises(Conflict, match=advice):
        ensure_admin_key(database, path, bootstrap_key)
    add(database, new_secret(), "admin")
    assert ensure_admin_key(database, path, bootstrap_key) == path
    assert "was revoked" in caplog.text
    assert "Other admin keys work." in caplog.text
    assert secret not in caplog.text


def rotated(database: Database, secret: str, *, grace: timedelta = timedelta()) -> str:
    """Replace the secret of the key that has this one, and give the new one."""
    new = new_secret()
    with database.write() as catalogue:
        row = catalogue.keys.by_secret(secret_sha256(secret))
        catalogue.keys.rotate(row.id, secret_sha256(new), prefix=new[:12], ends_at=datetime.now(UTC) + grace)
    return new


def test_a_replaced_secret_never_comes_back_to_life(database: Database, tmp_path: Path, caplog: Any) -> None:
    """Not by the file that still holds it, nor by the environment: it would be an admin key that nobody knows of."""
    path = ensure_admin_key(database, tmp_path / "admin.key")
    old = path.read_text().strip()
    new = rotated(database, old)
    ensure_admin_key(database, path)
    ensure_admin_key(database, path, old)
    assert "was replaced by another secret" in caplog.text
    with pytest.raises(Unauthenticated, match="was replaced on 2"):
        authenticate(database, f"Bearer {old}")
    assert "admin" in authenticate(database, f"Bearer {new}").scopes


def test_the_file_of_the_admin_key_gets_the_new_secret_and_no_other_file(database: Database, tmp_path: Path) -> None:
    path = ensure_admin_key(database, tmp_path / "admin.key")
    old = path.read_text().strip()
    assert not replace_admin_secret(path, secret_sha256(new_secret()), BOOTSTRAP)
    assert replace_admin_secret(path, secret_sha256(old), BOOTSTRAP)
    assert path.read_text().strip() == BOOTSTRAP
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("something else\n")
    assert not replace_admin_secret(path, secret_sha256(old), BOOTSTRAP)
    assert not replace_admin_secret(tmp_path / "none", secret_sha256(old), BOOTSTRAP)


def test_a_secret_works_for_its_grace_and_not_longer_than_any_later_one_says(database: Database) -> None:
    first = new_secret()
    key_id = add(database, first)
    second = rotated(database, first, grace=timedelta(hours=1))
    assert authenticate(database, f"Bearer {first}").key_id == key_id
    later = datetime.now(UTC) + timedelta(hours=2)
    with pytest.raises(Unauthenticated, match="replaced"):
        authenticate(database, f"Bearer {first}", clock=lambda: later)
    third = rotated(database, second)
    for ended in (first, second):
        with pytest.raises(Unauthenticated, match="replaced"):
            authenticate(database, f"Bearer {ended}")
    assert authenticate(database, f"Bearer {third}").key_id == key_id


def test_an_admin_key_that_is_none_any_more_is_told(database: Database, tmp_path: Path, caplog: Any) -> None:
    path = ensure_admin_key(database, tmp_path / "admin.key")
    add(database, new_secret(), "admin")
    with database.write() as catalogue:
        row = catalogue.keys.by_secret(secret_sha256(path.read_text().strip()))
        catalogue.keys.change(row.id, scopes=["read"])
    ensure_admin_key(database, path)
    assert "has no scope 'admin' any more" in caplog.text


# --- watch ----------------------------------------------------------------------------------------


def test_the_last_use_is_written(database: Database) -> None:
    secret = new_secret()
    key_id = add(database, secret)
    moment = [datetime(2030, 1, 1, tzinfo=UTC)]
    watch = KeyWatch(database, moment=lambda: moment[0])

    def used_at() -> datetime | None:
        with database.read() as catalogue:
            return catalogue.keys.get(key_id).last_used_at

    assert used_at() is None
    authenticate(database, f"Bearer {secret}", watch=watch)
    watch.write()
    assert used_at() == moment[0]
    moment[0] += timedelta(seconds=30)
    authenticate(database, f"Bearer {secret}", watch=watch)
    watch.write()
    assert used_at() == moment[0]


def test_refusals_are_one_entry_a_write_however_many(database: Database) -> None:
    secret = new_secret()
    key_id = add(database, secret)
    revoke(database, key_id)
    watch = KeyWatch(database)

    def refusals() -> list[Any]:
        rows = audited(database, 99, action="key.refuse")
        return [(row.subject, row.key_id, row.detail["reason"], row.detail["count"]) for row in reversed(rows)]

    for header in [f"Bearer {secret}"] * 3 + [f"Bearer {BOOTSTRAP}"] * 200:
        with pytest.raises(Unauthenticated):
            authenticate(database, header, watch=watch)
    watch.write()
    assert sorted(refusals(), key=str) == [(key_id, key_id, "revoked", 3), ("unknown", None, "unknown", 200)]
    watch.refused("unknown", None)
    watch.write()
    assert refusals()[2:] == [("unknown", None, "unknown", 1)]
    assert secret not in str(refusals())


def test_what_cannot_be_written_is_kept(database: Database, monkeypatch: Any) -> None:
    watch, key_id = KeyWatch(database), add(database, new_secret())
    watch.used(key_id)
    watch.refused("unknown", None)

    with monkeypatch.context() as broken:
        broken.setattr(database, "write", Mock(side_effect=Busy("busy", retry_after=1)))
        with pytest.raises(Busy):
            watch.write()
    watch.write()
    with database.read() as catalogue:
        assert catalogue.keys.get(key_id).last_used_at is not None
        assert len(catalogue.audit.list(None, action="key.refuse", limit=9).rows) == 1


# --- sessions of browsers -------------------------------------------------------------------------


@pytest.fixture
def watch(database: Database) -> KeyWatch:
    return KeyWatch(database)


@pytest.fixture
def sessions(database: Database, watch: KeyWatch) -> Sessions:
    return Sessions(database, watch, seconds=3600)


@pytest.fixture
def key(database: Database) -> Callable[..., tuple[str, str]]:
    """A new key: its secret, and its id."""

    def make(**about: object) -> tuple[str, str]:
        secret = new_secret()
        return secret, add(database, secret, namespaces=("acme",), **about)

    return make


def refused(sessions: Sessions, token: str) -> str:
    with pytest.raises(Unauthenticated) as error:
        sessions.principal(token)
    return error.value.message


@pytest.mark.parametrize("token", ["", "nobody", "caf\u00e9", "\udcff", "x" * 43, "sk-soup-" + "0" * 43])
def test_what_no_server_gave_is_no_session(sessions, token) -> None:
    """Also what is no text: a header may hold any byte."""
    assert refused(sessions, token) == "You were signed out: sign in again."


def test_a_session_is_its_key_and_neither_secret_is_stored(sessions, database, key) -> None:
    secret, key_id = key()
    token, principal = sessions.begin(secret, "request-1")
    assert sessions.principal(token) == principal
    assert (principal.key_id, principal.namespaces, principal.scopes) == (key_id, ("acme",), frozenset({"read"}))
    with database.read() as catalogue:
        row = catalogue.sessions.find(secret_sha256(token))
    assert row is not None
    assert token not in str(row)
    assert secret not in str(row)
    assert [(entry.action, entry.key_id, entry.request_id) for entry in audited(database, 5)] == [
        ("session.begin", key_id, "request-1")
    ]


def test_signing_out_ends_one_session_and_no_other(sessions, database, key) -> None:
    secret, _ = key()
    (first, principal), (second, _) = sessions.begin(secret, "r"), sessions.begin(secret, "r")
    sessions.end(first, principal)
    refused(sessions, first)
    assert sessions.principal(second) == principal
    assert audited(database, 1)[0].action == "session.end"


def test_signing_in_again_ends_the_session_before_and_no_other(sessions, database, key) -> None:
    """Also one of another key; a secret that is none ends nothing."""
    (secret, key_id), (second_secret, second_key_id) = key(), key()
    (first, _), (second, _) = sessions.begin(secret, "r"), sessions.begin(secret, "r")
    with pytest.raises(Unauthenticated):
        sessions.begin(new_secret(), "r", instead_of=first)
    sessions.principal(first)
    token, principal = sessions.begin(second_secret, "r", instead_of=first)
    refused(sessions, first)
    assert sessions.principal(token) == principal
    assert sessions.principal(second).key_id == key_id
    assert [(row.action, row.key_id, row.subject) for row in audited(database, 2)] == [
        ("session.begin", second_key_id, second_key_id),
        ("session.end", second_key_id, key_id),
    ]
    sessions.begin(second_secret, "r", instead_of="x" * 43)


def test_a_key_that_expires_ends_its_sessions(database, watch, key) -> None:
    moment = datetime.now(UTC)
    secret, _ = key(expires_at=moment + timedelta(minutes=5))
    token, _ = Sessions(database, watch, seconds=3600).begin(secret, "r")
    later = Sessions(database, watch, seconds=3600, clock=lambda: moment + timedelta(minutes=6))
    assert "expired" in refused(later, token)


def test_a_secret_that_is_replaced_ends_its_sessions_when_it_ends(sessions, database, key) -> None:
    """With a grace the session goes on for as long as the secret does."""
    secret, key_id = key()
    token, principal = sessions.begin(secret, "r")
    with database.write() as catalogue:
        ends_at = datetime.now(UTC) + timedelta(minutes=5)
        catalogue.keys.rotate(key_id, secret_sha256(new_secret()), prefix="sk", ends_at=ends_at)
    assert sessions.principal(token) == principal
    with database.write() as catalogue:
        catalogue.keys.rotate(key_id, secret_sha256(new_secret()), prefix="sk", ends_at=datetime.now(UTC))
    assert "was replaced" in refused(sessions, token)


def test_a_session_has_an_end_and_goes_with_the_next_one_that_begins(database, watch, key) -> None:
    secret, _ = key()
    token, _ = Sessions(database, watch, seconds=-1).begin(secret, "r")
    lasting = Sessions(database, watch, seconds=60)
    refused(lasting, token)
    lasting.begin(secret, "r")
    assert stored_sessions(database) == 1


def test_a_key_has_only_so_many_sessions_and_the_oldest_end(sessions, key) -> None:
    (secret, _), (second_secret, _) = key(), key()
    second_token, _ = sessions.begin(second_secret, "r")
    tokens = [sessions.begin(secret, "r")[0] for _ in range(MOST_OF_A_KEY + 2)]
    for token in tokens[:2]:
        refused(sessions, token)
    for token in (*tokens[2:], second_token):
        sessions.principal(token)


def test_what_is_no_key_does_not_begin_a_session(sessions, watch, database) -> None:
    for secret in ("", "admin", new_secret(), f"Bearer {new_secret()}", "sk-soup-\x00"):
        with pytest.raises(Unauthenticated):
            sessions.begin(secret, "r")
    assert stored_sessions(database) == 0
