"""Keys: scopes, namespaces, revocation, and the admin key's file."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from registry.catalogue import Database
from registry.errors import Conflict, Forbidden, InvalidParameter, NotFound, Unauthenticated
from service.keys import SECRET_PATTERN, Principal, authenticate, ensure_admin_key, new_secret, secret_sha256

BOOTSTRAP = "sk-soup-" + "b" * 43


def add(database: Database, secret: str, *, scopes: tuple[str, ...] = ("read",)) -> str:
    with database.write() as catalogue:
        return catalogue.keys.add(
            "k", secret_sha256(secret), namespaces=("team",), scopes=frozenset(scopes), prefix=secret[:12]
        ).id


def test_secrets_have_the_form_and_differ() -> None:
    secrets = {new_secret() for _ in range(50)}
    assert len(secrets) == 50
    assert all(SECRET_PATTERN.fullmatch(secret) for secret in secrets)


def test_a_key_gives_its_principal(database: Database) -> None:
    secret = new_secret()
    key_id = add(database, secret, scopes=("read", "infer"))
    for header in (f"Bearer {secret}", f"bearer  {secret} "):
        found = authenticate(database, header)
        assert found == Principal(key_id, ("team",), frozenset({"read", "infer"}))


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


def test_a_revoked_key_stops_at_once(database: Database) -> None:
    secret = new_secret()
    key_id = add(database, secret)
    authenticate(database, f"Bearer {secret}")
    with database.write() as catalogue:
        catalogue.keys.revoke(key_id)
    with pytest.raises(Unauthenticated, match="revoked"):
        authenticate(database, f"Bearer {secret}")


def test_a_key_works_until_it_expires(database: Database) -> None:
    secret, end = new_secret(), datetime(2031, 5, 4, 12, 30, tzinfo=UTC)
    with database.write() as catalogue:
        catalogue.keys.add(
            "k", secret_sha256(secret), namespaces=None, scopes={"read"}, prefix=secret[:12], expires_at=end
        )
    before = authenticate(database, f"Bearer {secret}", clock=lambda: end - timedelta(microseconds=1))
    assert before.expires_at == end
    with pytest.raises(Unauthenticated, match="expired on 2031-05-04 at 12:30 UTC"):
        authenticate(database, f"Bearer {secret}", clock=lambda: end)


def test_a_start_with_an_expired_key_needs_another_that_lasts(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, secret, moment = tmp_path / "admin.key", new_secret(), datetime.now(UTC)

    def admin(of: str, expires_at: datetime | None) -> None:
        with database.write() as catalogue:
            digest = secret_sha256(of)
            catalogue.keys.add("k", digest, namespaces=None, scopes={"admin"}, prefix="p", expires_at=expires_at)

    admin(secret, moment - timedelta(days=1))
    admin(new_secret(), moment + timedelta(days=1))
    with pytest.raises(Conflict, match="SOUP_BOOTSTRAP_KEY expired"):
        ensure_admin_key(database, path, secret)
    admin(new_secret(), None)
    assert ensure_admin_key(database, path, secret) == path
    assert "Other admin keys work." in caplog.text


def test_the_secret_is_not_in_the_database(database: Database, tmp_path: Path) -> None:
    secret = new_secret()
    add(database, secret)
    database.close()
    for file in tmp_path.glob("soup.db*"):
        assert secret.encode() not in file.read_bytes()


def test_admin_implies_every_scope() -> None:
    assert Principal("k", None, frozenset({"admin"})).has("write")
    assert not Principal("k", None, frozenset({"write"})).has("read")


def test_namespaces_bound_what_is_written_and_seen() -> None:
    team = Principal("k", ("team",), frozenset({"write"}))
    team.check_write("team")
    with pytest.raises(Forbidden, match="other"):
        team.check_write("other")
    with pytest.raises(NotFound):
        team.check_visible("other")
    with pytest.raises(Forbidden, match="scope"):
        Principal("k", None, frozenset({"read"})).check_write("team")
    Principal("k", None, frozenset({"write"})).check_write("anything")
    with pytest.raises(Forbidden):
        Principal("k", (), frozenset({"write"})).check_write("team")


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
    found = admin_of(database, path)
    assert found.namespaces is None
    assert found.has("admin")
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


def test_a_bootstrap_secret_is_taken(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    ensure_admin_key(database, path, BOOTSTRAP)
    assert path.read_text().strip() == BOOTSTRAP
    ensure_admin_key(database, path, BOOTSTRAP)
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


def test_a_revoked_admin_key_is_not_revived(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    ensure_admin_key(database, path)
    with database.write() as catalogue:
        catalogue.keys.revoke(catalogue.keys.list()[0].id)
    with pytest.raises(Conflict, match=r"admin\.key was revoked; remove that file"):
        ensure_admin_key(database, path)


def test_a_revoked_bootstrap_key_says_what_helps(database: Database, tmp_path: Path) -> None:
    path, first, second = tmp_path / "admin.key", new_secret(), new_secret()
    ensure_admin_key(database, path, first)
    with database.write() as catalogue:
        catalogue.keys.revoke(catalogue.keys.list()[0].id)
    with pytest.raises(Conflict, match="SOUP_BOOTSTRAP_KEY was revoked; set another"):
        ensure_admin_key(database, path, first)
    ensure_admin_key(database, path, second)
    assert authenticate(database, f"Bearer {second}").scopes == {"admin"}


@pytest.mark.parametrize("bootstrap", [True, False])
def test_a_revoked_first_key_does_not_stop_the_start_where_there_is_another(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, bootstrap: bool
) -> None:
    path, secret = tmp_path / "admin.key", new_secret()
    given = secret if bootstrap else None
    ensure_admin_key(database, path, given)
    with database.write() as catalogue:
        first = catalogue.keys.list()[0].id
        catalogue.keys.add("of a team", "a" * 64, namespaces=("acme",), scopes={"admin"}, prefix="p")
        catalogue.keys.add("reader", "b" * 64, namespaces=None, scopes={"read"}, prefix="p")
        catalogue.keys.revoke(first)
    with pytest.raises(Conflict, match="was revoked"):
        ensure_admin_key(database, path, given)
    with database.write() as catalogue:
        catalogue.keys.add("second", "c" * 64, namespaces=None, scopes={"admin"}, prefix="p")
    assert ensure_admin_key(database, path, given) == path
    assert "was revoked" in caplog.text
    assert "Other admin keys work." in caplog.text
    assert secret not in caplog.text
