"""PostgreSQL: how transactions begin, and which errors are no fault of the server's code.

Called by `database` only. A read is REPEATABLE READ, READ ONLY: one snapshot of everything; an `autocommit` read begins
no transaction. Writes take turns by an advisory lock that ends with the transaction, in every process that shares the
database. So what holds on SQLite, where a write is BEGIN IMMEDIATE, holds here too, without retries or deadlocks.
Writes are a few rows in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import DataError, DBAPIError, OperationalError

from registry.catalogue.rows import Mode
from registry.errors import Busy, Internal, InvalidParameter, SoupError, Unavailable

LOCK = 0x736F7570
"""Class of our advisory locks ('soup'); the second key is the schema the tables are in."""
IDLE_SECONDS = 60
"""A writer that stopped in mid-transaction (frozen, or its machine gone) loses its lock after this."""
UNLOCKED_SECONDS = 5.0
"""The longest wait of a write without the write lock for a row that a frozen server holds; twice that in all."""
CONNECTING: dict[str, int] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's parameters unless the URL sets them: a server that vanished is noticed within half a minute."""
PASSING = frozenset({"40001", "40P01", "55P03", "57014"})
"""Serialization failure, deadlock, lock timeout, statement timeout: the next try may succeed."""
AWAY = ("08", "53", "57", "58", "25P03")
"""Prefixes of SQL states: connection lost, out of resources, shut down or starting, system error, idle too long."""
READ_ONLY = "25006"
NOT_SUPPORTED = "0A000"
"""A standby's answer to BEGINS on a connection that has read before."""
BEGINS = "SET LOCAL lock_timeout"
"""The first statement of every write begins with this."""
RETRY_AFTER = 5
GONE = "The database does not answer. Try again when it is back."
UNSURE = (
    "The database does not answer, and it is not known whether it stored this. When it is back look whether it did, "
    "or send the request again."
)


class Postgresql:
    """A Backend for a PostgreSQL server."""

    execution_options: Mapping[Mode, Mapping[str, Any]] = {
        "autocommit": {"isolation_level": "AUTOCOMMIT"},
        "read": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
        "write": {"isolation_level": "READ COMMITTED"},
        "unlocked": {"isolation_level": "READ COMMITTED"},
    }

    def __init__(self, url: URL, busy_seconds: float) -> None:
        self._url = url
        self._busy_seconds = busy_seconds

    def engine_options(self) -> dict[str, Any]:
        """Arguments of `create_engine`. No prepared statements: a migration or a pooler in between breaks them."""
        defaults = {name: value for name, value in CONNECTING.items() if name not in self._url.query}
        return {"connect_args": {"prepare_threshold": None, **defaults}, "pool_pre_ping": True}

    def prepare(self, engine: Engine) -> None:
        """Have every write begin by taking the write lock, and refuse a database whose encoding is not UTF-8.

        A write waits for the lock at most `busy_seconds`, a migration without limit.
        """
        event.listen(engine, "connect", _check_encoding)
        event.listen(engine, "begin", self._begin)
        event.listen(engine, "before_cursor_execute", _check_autocommit)

    def check_unchanged(self) -> None:
        """Do nothing: connections do not survive the replacement of a server."""

    def translate_error(self, error: DBAPIError, mode: Mode | None) -> SoupError | None:
        """The error to raise for a temporary error, or for values that no column accepts; None for any other."""
        state = getattr(error.orig, "sqlstate", None)
        if state in PASSING:
            return Busy("Others are at work in the database; try again.", retry_after=RETRY_AFTER)
        unanswered = error.connection_invalidated or (isinstance(error, OperationalError) and state is None)
        if unanswered or (state is not None and state.startswith(AWAY)):
            return Unavailable(UNSURE if mode == "commit" else GONE)
        refused = state == NOT_SUPPORTED and (error.statement or "").startswith(BEGINS)
        if (state == READ_ONLY or refused) and mode in ("write", "unlocked"):
            return Unavailable("The database takes no writes at present (a standby?). Try again when it does.")
        if isinstance(error, DataError):
            return InvalidParameter("A value is too long, too large, or holds a NUL character, which cannot be stored.")
        return None

    def _begin(self, connection: Connection) -> None:
        mode = connection.get_execution_options().get("soup_mode")
        if mode == "write":
            connection.exec_driver_sql(_take_lock(max(1, round(self._busy_seconds * 1000)), IDLE_SECONDS * 1000))
        elif mode == "unlocked":
            connection.exec_driver_sql(_begin_unlocked(self._busy_seconds))
        elif mode == "migrate":
            connection.exec_driver_sql(_take_lock(0, 0))


def _check_encoding(connection: Any, _record: object) -> None:
    """Raise Unavailable for a database that cannot hold every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in (None, "UTF8"):  # None: a pooler in between does not tell
        connection.close()
        raise Unavailable(
            f"The database is in {encoding}, which does not hold every text: make one with "
            "`createdb --encoding=UTF8 --template=template0`.",
            param="database_url",
        )


def _check_autocommit(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
    """Raise Internal for a write in autocommit mode, which would be committed at once."""
    if connection.get_execution_options().get("soup_mode") == "autocommit" and not statement.startswith("SELECT"):
        raise Internal("A statement that may write was run in autocommit mode.")


def _take_lock(lock_timeout: int, idle_timeout: int) -> str:
    """The statements that take the write lock; timeouts in milliseconds, 0 is none."""
    return (
        f"{BEGINS} = {lock_timeout}; SET LOCAL idle_in_transaction_session_timeout = {idle_timeout}; "
        f"SELECT pg_advisory_xact_lock({LOCK}, hashtext(coalesce(current_schema(), '')))"
    )


def _begin_unlocked(busy_seconds: float) -> str:
    """The statements that begin a write without the lock, in a database whose writes wait for `busy_seconds`."""
    lock = round(1000 * min(UNLOCKED_SECONDS, max(1.0, busy_seconds)))
    return (
        f"{BEGINS} = {lock}; SET LOCAL statement_timeout = {2 * lock}; "
        "SET LOCAL idle_in_transaction_session_timeout = 10000; SET LOCAL synchronous_commit = off"
    )
