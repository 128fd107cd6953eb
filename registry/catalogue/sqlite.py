"""SQLite: how connections are prepared, how transactions begin, and which errors are temporary or the operator's.

Called by `database` only. A write is BEGIN IMMEDIATE: read-then-update under a plain BEGIN loses updates.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from registry.catalogue.rows import Mode
from registry.errors import Busy, InvalidParameter, SoupError, Unavailable

RETRY_AFTER = 5
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
UNUSABLE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
READS = ("read", "autocommit")
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")


class Sqlite:
    """A Backend for a SQLite file; raises InvalidParameter for a database in memory."""

    execution_options: Mapping[Mode, Mapping[str, Any]] = {}

    def __init__(self, url: URL, busy_seconds: float) -> None:
        if url.database in (None, "", ":memory:"):
            raise InvalidParameter("The database must be a file: one in memory is not shared by threads.", param="url")
        self._path = Path(url.database or "")
        self._busy_seconds = busy_seconds
        self._opened: tuple[int, int] | None = None
        """Device and inode of the file that the first connection opened, None while there is no connection."""

    def engine_options(self) -> dict[str, Any]:
        """Arguments of `create_engine`."""
        return {"connect_args": {"check_same_thread": False, "timeout": self._busy_seconds}}

    def prepare(self, engine: Engine) -> None:
        """Have every connection checked and durable, and every transaction begin in its mode."""
        event.listen(engine, "connect", _prepare_connection)
        event.listen(engine, "connect", self._note_opened)
        event.listen(engine, "engine_disposed", self._note_closed)
        event.listen(engine, "begin", _begin)

    def check_unchanged(self) -> None:
        """Raise Unavailable if the file was removed or replaced: SQLite continues to write into the file it opened."""
        if self._opened is not None and self._identity() != self._opened:
            raise Unavailable(
                f"The database file {self._path.name} was removed or replaced while the server is running: nothing of "
                "this was stored. Stop the server, put the file back, and start it again."
            )

    def translate_error(self, error: DBAPIError, mode: Mode | None) -> SoupError | None:
        """The error to raise for a temporary error, or one that the operator can fix; None for any other."""
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy("Another process is writing to the database: try again.", retry_after=RETRY_AFTER)
        if code == sqlite3.SQLITE_FULL:
            return Unavailable("The disk of the database is full. Try again when there is room.")
        if code in DAMAGED:
            return Unavailable(
                f"The database file is damaged ({error.orig}): stop the server and put back a backup ('soup restore')."
            )
        # a read that writes is an error of the server's code
        if code in UNUSABLE or (code == sqlite3.SQLITE_READONLY and mode not in READS):
            return Unavailable(f"The database file cannot be used ({error.orig}): look at its disk and at its rights.")
        return None

    def _note_opened(self, *_: object) -> None:
        if self._opened is None:
            self._opened = self._identity()

    def _note_closed(self, *_: object) -> None:
        self._opened = None

    def _identity(self) -> tuple[int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino


def _prepare_connection(connection: sqlite3.Connection, _: object) -> None:
    """Turn off the driver's own transactions, and set the pragmas, which hold per connection."""
    connection.isolation_level = None
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    """Begin in the transaction's mode; without one (checks) as a plain transaction."""
    mode = connection.get_execution_options().get("soup_mode")
    connection.exec_driver_sql(f"PRAGMA query_only={int(mode in READS)}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if mode in ("write", "migrate") else "BEGIN")
