"""Connections and transactions. The only place that knows which database it talks to.

`Database.read()` and `.write()` give a `Catalogue` bound to one transaction; leaving a write commits it, an error
rolls it back. On SQLite a write is BEGIN IMMEDIATE: read-then-update under a plain BEGIN loses updates. There the
writers of a process also queue up here, because SQLite itself lets them poll, and some would wait for ever.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from registry.catalogue.adapters import Adapters
from registry.catalogue.aliases import Aliases
from registry.catalogue.audit import Audit
from registry.catalogue.blobs import Blobs
from registry.catalogue.jobs import Jobs
from registry.catalogue.keys import Keys
from registry.catalogue.samples import Samples
from registry.catalogue.selectors import Selectors
from registry.catalogue.soups import Soups
from registry.errors import Busy, Internal, InvalidParameter

BUSY_SECONDS = 30
RETRY_AFTER = 5
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON")


class Catalogue:
    """Everything that is known, within one transaction. No method commits."""

    def __init__(self, connection: Connection) -> None:
        self.adapters = Adapters(connection)
        self.aliases = Aliases(connection)
        self.samples = Samples(connection)
        self.selectors = Selectors(connection)
        self.soups = Soups(connection)
        self.jobs = Jobs(connection)
        self.keys = Keys(connection)
        self.audit = Audit(connection)
        self.blobs = Blobs(connection)


class Database:
    """One database by its SQLAlchemy URL, with at most `pool_size` connections.

    Threads share it. `read` and `write` raise Busy when neither a connection nor the turn to write comes in time.
    """

    def __init__(self, url: str, *, pool_size: int = 16, busy_seconds: float = BUSY_SECONDS) -> None:
        self.engine = _engine(url, pool_size, busy_seconds)
        self._turn = _Turn(busy_seconds) if self.engine.dialect.name == "sqlite" else None

    @contextmanager
    def read(self) -> Iterator[Catalogue]:
        """A transaction that only reads: one consistent state of everything. What it writes is refused or dropped."""
        with self._connection("read") as connection:
            yield Catalogue(connection)
            connection.rollback()

    @contextmanager
    def write(self) -> Iterator[Catalogue]:
        """A transaction that writes: committed when the block ends, rolled back when it raises."""
        with self._turn or nullcontext(), self._connection("write") as connection:
            yield Catalogue(connection)
            connection.commit()

    @contextmanager
    def _connection(self, mode: Literal["read", "write"]) -> Iterator[Connection]:
        """A connection whose transaction has begun; what is not committed in it is rolled back."""
        try:
            connection = self.engine.connect()
        except PoolTimeout:
            raise Busy("Every database connection is in use; try again.", retry_after=RETRY_AFTER) from None
        with connection:
            try:
                connection.execution_options(soup_mode=mode).begin()
            except OperationalError as error:
                if _is_locked(error):
                    raise Busy(
                        "Another process is writing to the database; try again.", retry_after=RETRY_AFTER
                    ) from error
                raise
            yield connection

    def ping(self) -> None:
        """Raise whatever the database raises when it cannot answer."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


class _Turn:
    """The turn to write: one thread at a time, each served in the order the operating system wakes them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._owner: int | None = None

    def __enter__(self) -> None:
        """Wait for the turn; raises Busy after `seconds`, and Internal where this thread is writing already."""
        if self._owner == threading.get_ident():
            raise Internal("a write transaction was opened inside another")
        if not self._lock.acquire(timeout=self._seconds):
            raise Busy("Others are writing to the database; try again.", retry_after=RETRY_AFTER)
        self._owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        """Give the turn to the next."""
        self._owner = None
        self._lock.release()


def _engine(url: str, pool_size: int, busy_seconds: float) -> Engine:
    options: dict[str, Any] = {}
    sqlite = make_url(url).get_backend_name() == "sqlite"
    if sqlite:
        if make_url(url).database in (None, "", ":memory:"):
            raise InvalidParameter("The database must be a file: one in memory is not shared by threads.", param="url")
        options["connect_args"] = {"check_same_thread": False, "timeout": busy_seconds}
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=busy_seconds,
        json_serializer=partial(json.dumps, allow_nan=False),  # NaN is no JSON: refused when written, not when read
        **options,
    )
    if sqlite:
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    """The driver must not begin transactions of its own; the pragmas hold per connection."""
    connection.isolation_level = None
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    """Begin as the transaction's mode asks; without one (migrations, checks) as a plain transaction."""
    mode = connection.get_execution_options().get("soup_mode")
    connection.exec_driver_sql(f"PRAGMA query_only={int(mode == 'read')}")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if mode == "write" else "BEGIN")


def _is_locked(error: OperationalError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
