"""SQLite: how its connections are prepared, how its transactions begin, and which of its errors are nobody's fault.

Called by `database` only. A write is BEGIN IMMEDIATE: read-then-update under a plain BEGIN loses updates.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from registry.catalogue.rows import Mode
from registry.errors import Busy, InvalidParameter, SoupError, Unavailable

RETRY_AFTER = 5
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
UNUSABLE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
READS = ("read", "glance")
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")


def engine_options(url: URL, busy_seconds: float) -> dict[str, Any]:
    """What `create_engine` is told; raises InvalidParameter for a database in memory."""
    if url.database in (None, "", ":memory:"):
        raise InvalidParameter("The database must be a file: one in memory is not shared by threads.", param="url")
    return {"connect_args": {"check_same_thread": False, "timeout": busy_seconds}}


def prepare(engine: Engine, busy_seconds: float) -> Callable[[], None]:  # noqa: ARG001 (the driver was told)
    """Have every connection checked and durable, and every transaction begin as its mode asks.

    What is returned raises Unavailable where the file is another by now, or gone.
    """
    file = _OpenedFile(Path(engine.url.database or ""))
    event.listen(engine, "connect", _prepare_connection)
    event.listen(engine, "connect", file.opened)
    event.listen(engine, "engine_disposed", file.closed)
    event.listen(engine, "begin", _begin)
    return file.check


def transaction_options(mode: Mode) -> dict[str, Any]:  # noqa: ARG001 (`_begin` sees the mode)
    """What a connection is told before its transaction: nothing."""
    return {}


def meaning(error: DBAPIError, mode: Mode | None) -> SoupError | None:
    """What people are told of an error that passes, or that the operator mends; None for any other."""
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy("Another process is writing to the database; try again.", retry_after=RETRY_AFTER)
    if code == sqlite3.SQLITE_FULL:
        return Unavailable("The disk of the database is full. Try again when there is room.")
    if code in DAMAGED:
        return Unavailable(
            f"The database file is damaged ({error.orig}): stop the server and put back a backup ('soup restore')."
        )
    if code in UNUSABLE or (code == sqlite3.SQLITE_READONLY and mode not in READS):  # a read that writes is our mistake
        return Unavailable(f"The database file cannot be used ({error.orig}): look at its disk and at its rights.")
    return None


class _OpenedFile:
    """The file that the first connection opened: SQLite writes on into it when it is removed or replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None

    def opened(self, *_: object) -> None:
        """There is a connection."""
        if self._known is None:
            self._known = self._now()

    def closed(self, *_: object) -> None:
        """There is none any more."""
        self._known = None

    def check(self) -> None:
        """Raises Unavailable where the path is no longer that of the file."""
        if self._known is not None and self._now() != self._known:
            raise Unavailable(
                f"The database file {self._path.name} was removed or replaced while the server is running: nothing of "
                "this was stored. Stop the server, put the file back, and start it again."
            )

    def _now(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _prepare_connection(connection: sqlite3.Connection, _: object) -> None:
    """The driver must not begin transactions of its own; the pragmas hold per connection."""
    connection.isolation_level = None
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    """Begin as the transaction's mode asks; without one (migrations, checks) as a plain transaction."""
    mode = connection.get_execution_options().get("soup_mode")
    connection.exec_driver_sql(f"PRAGMA query_only={int(mode in READS)}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if mode in ("write", "migrate") else "BEGIN")
