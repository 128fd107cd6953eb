"""Connections and transactions. With `sqlite` and `postgresql`, the only modules that know the kind of database.

A read sees one snapshot of everything. Writes happen one after the other, in all processes, so that rows read in a
write cannot change before it ends. Within a process they also queue for a lock here. SQLite lets writers poll, so that
some might wait forever; on PostgreSQL each would hold a connection while it waits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from registry.catalogue.adapters import Adapters
from registry.catalogue.aliases import Aliases
from registry.catalogue.audit import Audit
from registry.catalogue.blobs import Blobs
from registry.catalogue.copying import AllTables
from registry.catalogue.evaluations import Evaluations
from registry.catalogue.jobs import Curves, Jobs
from registry.catalogue.keys import Keys, Sessions
from registry.catalogue.limits import UseLimitRows
from registry.catalogue.namespaces import NamespaceSettings
from registry.catalogue.postgresql import Postgresql
from registry.catalogue.probes import Probes
from registry.catalogue.pruning import Pruning
from registry.catalogue.rate_buckets import RateBuckets
from registry.catalogue.removals import Removals
from registry.catalogue.replicas import Replicas
from registry.catalogue.rows import Mode
from registry.catalogue.samples import Samples, Statistics
from registry.catalogue.selectors import Selectors
from registry.catalogue.soups import Soups
from registry.catalogue.sqlite import Sqlite
from registry.catalogue.stores import Stores
from registry.catalogue.uploads import Uploads
from registry.catalogue.usage import Usage
from registry.errors import Busy, Internal, InvalidParameter, SoupError, Unavailable

BUSY_SECONDS = 30
RETRY_AFTER = 5


class Backend(Protocol):
    """One kind of database: its options, how its transactions begin, and what its errors mean."""

    @property
    def execution_options(self) -> Mapping[Mode, Mapping[str, Any]]:
        """Execution options of a connection, by the mode of its transaction."""

    def engine_options(self) -> dict[str, Any]:
        """Arguments of `create_engine`."""

    def prepare(self, engine: Engine) -> None:
        """Have transactions of an engine begin in their mode."""

    def check_unchanged(self) -> None:
        """Raise Unavailable if the database is no longer the one that was opened."""

    def translate_error(self, error: DBAPIError, mode: Mode | None) -> SoupError | None:
        """The error to raise for a driver's error that the server's code did not cause; None for any other."""


BACKENDS: dict[str, Callable[[URL, float], Backend]] = {
    "sqlite": Sqlite,
    "sqlite+pysqlite": Sqlite,
    "postgresql": Postgresql,
    "postgresql+psycopg": Postgresql,
}
"""Backends by the scheme of the URL; other drivers are not installed, or do not support threads."""


class Catalogue:
    """The repositories of all tables within one transaction. No method commits.

    Jobs are enqueued with `traceparent`, the current span of the trace.
    """

    def __init__(self, connection: Connection, traceparent: str | None = None) -> None:
        self.adapters = Adapters(connection)
        self.aliases = Aliases(connection)
        self.samples = Samples(connection)
        self.selectors = Selectors(connection)
        self.soups = Soups(connection)
        self.statistics = Statistics(connection)
        self.probes = Probes(connection)
        self.evaluations = Evaluations(connection)
        self.jobs = Jobs(connection, traceparent)
        self.curves = Curves(connection)
        self.keys = Keys(connection)
        self.sessions = Sessions(connection)
        self.namespaces = NamespaceSettings(connection)
        self.audit = Audit(connection)
        self.blobs = Blobs(connection)
        self.stores = Stores(connection)
        self.removals = Removals(connection)
        self.replicas = Replicas(connection)
        self.uploads = Uploads(connection)
        self.limits = UseLimitRows(connection)
        self.usage = Usage(connection)
        self.rate_buckets = RateBuckets(connection)
        self.pruning = Pruning(connection)
        self.all_tables = AllTables(connection)


class Database:
    """One database by its SQLAlchemy URL, with at most `pool_size` connections; threads share it.

    Every transaction raises Busy if no connection, or no lock to write, is free within `busy_seconds`, and Unavailable
    while the database does not answer; it reconnects by itself.
    """

    def __init__(self, url: str, *, pool_size: int = 16, busy_seconds: float = BUSY_SECONDS) -> None:
        self._backend = _backend(url, busy_seconds)
        self.engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=busy_seconds,
            hide_parameters=True,  # errors are logged, and values that clients sent must not be
            json_serializer=partial(json.dumps, allow_nan=False),  # NaN is no JSON: refused when written, not when read
            **self._backend.engine_options(),
        )
        self._backend.prepare(self.engine)
        self._write_lock = _WriteLock(busy_seconds)
        self.traceparent: Callable[[], str | None] = lambda: None
        """Returns the current span, for jobs that are enqueued in it."""

    @contextmanager
    def read(self) -> Iterator[Catalogue]:
        """A read transaction: one snapshot of everything. Writes in it are refused or rolled back."""
        with self._transaction("read") as connection:
            yield Catalogue(connection, self.traceparent())
            connection.rollback()

    @contextmanager
    def read_autocommit(self) -> Iterator[Catalogue]:
        """A read without a transaction, for a single statement: on PostgreSQL each sees a snapshot of its own.

        Saves two of three round trips to the database, those that begin and end a transaction.
        """
        with self._transaction("autocommit") as connection:
            yield Catalogue(connection, self.traceparent())
            connection.rollback()

    @contextmanager
    def write(self) -> Iterator[Catalogue]:
        """A write transaction: committed when the block ends, rolled back when it raises."""
        with self._write_lock, self._transaction("write") as connection:
            yield Catalogue(connection, self.traceparent())
            self._backend.check_unchanged()  # a commit into a removed file would be lost
            with self.translate_errors("commit"):
                connection.commit()
            self._backend.check_unchanged()

    @contextmanager
    def write_unlocked(self) -> Iterator[Catalogue]:
        """A write without the write lock and without a sync, for rows no other write depends on: heartbeats and rates.

        A change of a row that another transaction holds waits for some seconds at most (Busy). A crash of the database
        loses the last second's changes at most.
        """
        with self._transaction("unlocked") as connection:
            yield Catalogue(connection, self.traceparent())
            with self.translate_errors("commit"):
                connection.commit()

    @contextmanager
    def _transaction(self, mode: Mode) -> Iterator[Connection]:
        """A connection in a transaction, which is rolled back unless it is committed."""
        self._backend.check_unchanged()
        options = self._backend.execution_options.get(mode, {})
        with self.translate_errors(mode), self.engine.connect() as connection:
            connection.execution_options(soup_mode=mode, **options).begin()
            yield connection

    @contextmanager
    def translate_errors(self, mode: Mode | None = None) -> Iterator[None]:
        """Raise Busy, Unavailable or Invalid for errors of the database that are no fault of the server's code."""
        try:
            yield
        except PoolTimeout:
            raise Busy("Every database connection is in use; try again.", retry_after=RETRY_AFTER) from None
        except DBAPIError as error:
            translated = self._backend.translate_error(error, mode)
            if translated is None:
                raise
            raise translated from error

    @contextmanager
    def translate_startup_errors(self) -> Iterator[None]:
        """Raise Unavailable, with the driver's reason and advice to the operator, for any error of the database."""
        try:
            yield
        except DBAPIError as error:
            reason = str(error.orig).strip().partition("\n")[0]
            url = self.engine.url
            file, advice = "", "check SOUP_DATABASE_URL"
            if url.get_backend_name() == "sqlite":  # any other URL may hold a password
                file = f" {url.database}"
                advice = "check SOUP_DATA and SOUP_DATABASE_URL, or put back a copy of that file"
            raise Unavailable(
                f"The database{file} cannot be used ({reason}): {advice}.", param="database_url"
            ) from error

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


class _WriteLock:
    """The lock of a process's writers: one thread at a time, woken in the operating system's order."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._owner: int | None = None

    def __enter__(self) -> None:
        """Acquire the lock; raises Busy after `seconds`, and Internal if this thread holds it already."""
        if self._owner == threading.get_ident():
            raise Internal("a write transaction was opened inside another")
        if not self._lock.acquire(timeout=self._seconds):
            raise Busy("The database is busy with other writes: try again.", retry_after=RETRY_AFTER)
        self._owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self._owner = None
        self._lock.release()


def _backend(url: str, busy_seconds: float) -> Backend:
    """The backend for the database at this URL; raises InvalidParameter for a kind that is not supported."""
    try:
        parsed = make_url(url)
        backend = None if "@" in (parsed.host or "") else BACKENDS.get(parsed.drivername)
    except (ArgumentError, ValueError):  # its message may quote the URL, and a URL holds a password
        backend = None
    if backend is None:
        raise InvalidParameter(
            "SOUP_DATABASE_URL must be 'sqlite:///FILE' or 'postgresql+psycopg://USER:PASSWORD@HOST/NAME', with every "
            "'@' of the password written as %40.",
            param="database_url",
        )
    return backend(parsed, busy_seconds)
