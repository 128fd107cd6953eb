"""Sessions of browsers: what ends one, what is stored of it, and how many a key may have."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from registry.catalogue import Database
from registry.errors import Unauthenticated
from service.access.key_watch import KeyWatch
from service.access.keys import new_secret, secret_sha256
from service.access.sessions import MOST_OF_A_KEY, Sessions


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
        with database.write() as catalogue:
            row = catalogue.keys.add(
                "browser", secret_sha256(secret), namespaces=("acme",), scopes=["read"], prefix="sk", **about
            )
        return secret, row.id

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
    token, who = sessions.begin(secret, "request-1")
    assert sessions.principal(token) == who
    assert (who.key_id, who.namespaces, who.scopes) == (key_id, ("acme",), frozenset({"read"}))
    with database.read() as catalogue:
        row = catalogue.sessions.find(secret_sha256(token))
        audit = catalogue.audit.list(None, limit=5, cursor=None).rows
    assert row is not None
    assert token not in str(row)
    assert secret not in str(row)
    assert [(one.action, one.key_id, one.request_id) for one in audit] == [("session.begin", key_id, "request-1")]


def test_signing_out_ends_one_session_and_no_other(sessions, database, key) -> None:
    secret, _ = key()
    (one, who), (other, _) = sessions.begin(secret, "r"), sessions.begin(secret, "r")
    sessions.end(one, who, "r")
    refused(sessions, one)
    assert sessions.principal(other) == who
    with database.read() as catalogue:
        assert catalogue.audit.list(None, limit=1, cursor=None).rows[0].action == "session.end"


def test_signing_in_again_ends_the_session_before_and_no_other(sessions, database, key) -> None:
    """Also one of another key; a secret that is none ends nothing."""
    (secret, key_id), (others, other_id) = key(), key()
    (one, _), (kept, _) = sessions.begin(secret, "r"), sessions.begin(secret, "r")
    with pytest.raises(Unauthenticated):
        sessions.begin(new_secret(), "r", instead_of=one)
    sessions.principal(one)
    token, who = sessions.begin(others, "r", instead_of=one)
    refused(sessions, one)
    assert sessions.principal(token) == who
    assert sessions.principal(kept).key_id == key_id
    with database.read() as catalogue:
        told = catalogue.audit.list(None, limit=2, cursor=None).rows
    assert [(row.action, row.key_id, row.subject) for row in told] == [
        ("session.begin", other_id, other_id),
        ("session.end", other_id, key_id),
    ]
    sessions.begin(others, "r", instead_of="x" * 43)


def test_a_key_that_expires_ends_its_sessions(database, watch, key) -> None:
    moment = datetime.now(UTC)
    secret, _ = key(expires_at=moment + timedelta(minutes=5))
    token, _ = Sessions(database, watch, seconds=3600).begin(secret, "r")
    later = Sessions(database, watch, seconds=3600, clock=lambda: moment + timedelta(minutes=6))
    assert "expired" in refused(later, token)


def test_a_secret_that_is_replaced_ends_its_sessions_when_it_ends(sessions, database, key) -> None:
    """With a grace the session goes on for as long as the secret does."""
    secret, key_id = key()
    token, who = sessions.begin(secret, "r")
    with database.write() as catalogue:
        ends_at = datetime.now(UTC) + timedelta(minutes=5)
        catalogue.keys.rotate(key_id, secret_sha256(new_secret()), prefix="sk", ends_at=ends_at)
    assert sessions.principal(token) == who
    with database.write() as catalogue:
        catalogue.keys.rotate(key_id, secret_sha256(new_secret()), prefix="sk", ends_at=datetime.now(UTC))
    assert "was replaced" in refused(sessions, token)


def test_a_session_has_an_end_and_goes_with_the_next_one_that_begins(database, watch, key) -> None:
    secret, _ = key()
    token, _ = Sessions(database, watch, seconds=-1).begin(secret, "r")
    lasting = Sessions(database, watch, seconds=60)
    refused(lasting, token)
    lasting.begin(secret, "r")
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar_one() == 1


def test_a_key_has_only_so_many_sessions_and_the_oldest_end(sessions, key) -> None:
    (secret, _), (others, _) = key(), key()
    theirs, _ = sessions.begin(others, "r")
    tokens = [sessions.begin(secret, "r")[0] for _ in range(MOST_OF_A_KEY + 2)]
    for token in tokens[:2]:
        refused(sessions, token)
    for token in (*tokens[2:], theirs):
        sessions.principal(token)


def test_what_is_no_key_does_not_begin_a_session(sessions, watch, database) -> None:
    for secret in ("", "admin", new_secret(), f"Bearer {new_secret()}", "sk-soup-\x00"):
        with pytest.raises(Unauthenticated):
            sessions.begin(secret, "r")
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sessions").scalar_one() == 0
