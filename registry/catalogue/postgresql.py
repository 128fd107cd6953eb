"""PostgreSQL: how transactions begin there, and which of its errors are nobody's fault.

Called by `database` only. A read is REPEATABLE READ, READ ONLY: one state of everything; for a glance no transaction
is begun. Writes take turns by an advisory lock that ends with the transaction, in every process that shares the
database: what holds on SQLite, where a write is BEGIN IMMEDIATE, then holds here too, without retries or deadlocks.
Writes are a few rows in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import DataError, DBAPIError, OperationalError

from registry.catalogue.rows import Mode
from registry.errors import Busy, Internal, InvalidParameter, SoupError, Unavailable

LOCK = 0x736F7570
"""Class of our advisory locks ('soup'); the second key is the schema the tables are in."""
IDLE_SECONDS = 60
"""A writer that stopped in mid-transaction (frozen, or its machine gone) loses its turn after this."""
BESIDE_SECONDS = 5.0
"""At most so long a write without the turn waits for a row that a frozen server holds, and twice as long in all."""
CONNECTING: dict[str, int] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's parameters, where the URL does not set them: a server that vanished is noticed within half a minute."""
PASSING = frozenset({"40001", "40P01", "55P03", "57014"})
"""Serialization failure, deadlock, lock timeout, statement timeout: the next try may succeed."""
AWAY = ("08", "53", "57", "58", "25P03")
"""Beginnings of states: connection lost, out of resources, shut down or starting, system error, idle too long."""
READ_ONLY = "25006"
NOT_SUPPORTED = "0A000"
"""What a standby says to a transaction that begins as one that writes: as one does on a connection that has read."""
BEGINS = "SET LOCAL lock_timeout"
"""The beginning of what begins every write."""
RETRY_AFTER = 5
GONE = "The database does not answer. Try again when it is back."
UNSURE = (
    "The database does not answer, and it is not known whether it stored this. When it is back look whether it did, "
    "or send the request again."
)


def engine_options(url: URL, busy_seconds: float) -> dict[str, Any]:  # noqa: ARG001 (a write says it as it begins)
    """What `create_engine` is told. Prepared statements are off: a migration or a pooler between would break them."""
    wanted = {name: value for name, value in CONNECTING.items() if name not in url.query}
    return {"connect_args": {"prepare_threshold": None, **wanted}, "pool_pre_ping": True}


def prepare(engine: Engine, busy_seconds: float) -> Callable[[], None]:
    """Have every write begin with its turn, for which it waits at most `busy_seconds`, and a migration for ever.

    A database that cannot hold every text is refused as it is connected to (Unavailable).
    """

    def check_encoding(connection: Any, _record: object) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in (None, "UTF8"):  # None: a pooler in between does not tell
            connection.close()
            raise Unavailable(
                f"The database is in {encoding}, which does not hold every text: make one with "
                "`createdb --encoding=UTF8 --template=template0`.",
                param="database_url",
            )

    def begin(connection: Connection) -> None:
        mode = connection.get_execution_options().get("soup_mode")
        if mode == "write":
            connection.exec_driver_sql(_turn(max(1, round(busy_seconds * 1000)), IDLE_SECONDS * 1000))
        elif mode == "beside":
            connection.exec_driver_sql(_beside(busy_seconds))
        elif mode == "migrate":
            connection.exec_driver_sql(_turn(0, 0))

    event.listen(engine, "connect", check_encoding)
    event.listen(engine, "begin", begin)
    event.listen(engine, "before_cursor_execute", _only_glances)
    return lambda: None  # a server that is another one does not know our connections


def _only_glances(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
    """Raises Internal where a glance would write, which would be committed at once."""
    if connection.get_execution_options().get("soup_mode") == "glance" and not statement.startswith("SELECT"):
        raise Internal("A glance at the database reads, and was given a statement that may write.")


def _turn(lock_timeout: int, idle_timeout: int) -> str:
    """Take the turn to write; timeouts in milliseconds, 0 is none."""
    return (
        f"{BEGINS} = {lock_timeout}; SET LOCAL idle_in_transaction_session_timeout = {idle_timeout}; "
        f"SELECT pg_advisory_xact_lock({LOCK}, hashtext(coalesce(current_schema(), '')))"
    )


def _beside(busy_seconds: float) -> str:
    """How a write without the turn begins, of a database whose writes wait for so long."""
    lock = round(1000 * min(BESIDE_SECONDS, max(1.0, busy_seconds)))
    return (
        f"{BEGINS} = {lock}; SET LOCAL statement_timeout = {2 * lock}; "
        "SET LOCAL idle_in_transaction_session_timeout = 10000; SET LOCAL synchronous_commit = off"
    )


def transaction_options(mode: Mode) -> dict[str, Any]:
    """What a connection is told before its transaction, whatever the database's own defaults are."""
    if mode == "glance":
        return {"isolation_level": "AUTOCOMMIT"}
    if mode == "read":
        return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    return {"isolation_level": "READ COMMITTED"}


def meaning(error: DBAPIError, mode: Mode | None) -> SoupError | None:
    """What people are told of an error that passes, or of values no column takes; None for any other."""
    state = getattr(error.orig, "sqlstate", None)
    if state in PASSING:
        return Busy("Others are at work in the database; try again.", retry_after=RETRY_AFTER)
    unanswered = error.connection_invalidated or (isinstance(error, OperationalError) and state is None)
    if unanswered or (state is not None and state.startswith(AWAY)):
        return Unavailable(UNSURE if mode == "commit" else GONE)
    refused = state == NOT_SUPPORTED and (error.statement or "").startswith(BEGINS)
    if (state == READ_ONLY or refused) and mode in ("write", "beside"):
        return Unavailable("The database takes no writes at present (a standby?). Try again when it does.")
    if isinstance(error, DataError):
        return InvalidParameter("A value is too long, too large, or holds a NUL character, which cannot be stored.")
    return None
