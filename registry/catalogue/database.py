"""Connections and transactions. With `sqlite` and `postgresql`, the only place that knows which database it talks to.

Reads see one state of everything; writes happen one after the other, in all processes, so that what is read in one
cannot change before it ends. The writers of a process also queue up here: SQLite itself lets them poll, and some would
wait for ever; on PostgreSQL each would hold a connection while it waits.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from registry.catalogue import postgresql, sqlite
from registry.catalogue.adapters import Adapters
from registry.catalogue.aliases import Aliases
from registry.catalogue.audit import Audit
from registry.catalogue.blobs import Blobs
from registry.catalogue.curves import Curves
from registry.catalogue.evaluations import Evaluations
from registry.catalogue.jobs import Jobs
from registry.catalogue.keys import Keys
from registry.catalogue.limits import UseLimitRows
from registry.catalogue.namespaces import NamespaceSettings
from registry.catalogue.pruning import Pruning
from registry.catalogue.rate_buckets import RateBuckets
from registry.catalogue.removals import Removals
from registry.catalogue.replicas import Replicas
from registry.catalogue.rows import Mode
from registry.catalogue.samples import Samples
from registry.catalogue.selectors import Selectors
from registry.catalogue.sessions import Sessions
from registry.catalogue.soups import Soups
from registry.catalogue.statistics import Statistics
from registry.catalogue.stores import Stores
from registry.catalogue.uploads import Uploads
from registry.catalogue.usage import Usage
from registry.catalogue.whole import Whole
from registry.errors import Busy, Internal, InvalidParameter, SoupError, Unavailable

BUSY_SECONDS = 30
RETRY_AFTER = 5


class Backend(Protocol):
    """What is particular to a database; each is a module of this package."""

    def engine_options(self, url: URL, busy_seconds: float) -> dict[str, Any]:
        """What `create_engine` is told."""

    def prepare(self, engine: Engine, busy_seconds: float) -> Callable[[], None]:
        """Have its transactions begin as their mode asks.

        What is returned raises Unavailable where the database is another by now than the one that was opened.
        """

    def transaction_options(self, mode: Mode) -> dict[str, Any]:
        """What a connection is told before its transaction."""

    def meaning(self, error: DBAPIError, mode: Mode | None) -> SoupError | None:
        """What people are told of an error that is nobody's fault here; None for any other."""


BACKENDS: dict[str, Backend] = {
    "sqlite": sqlite,
    "sqlite+pysqlite": sqlite,
    "postgresql": postgresql,
    "postgresql+psycopg": postgresql,
}
"""By the beginning of the URL: other drivers are not installed, or not for threads."""


class Catalogue:
    """Everything that is known, within one transaction. No method commits.

    Jobs get the `traceparent` of the trace that they are enqueued in.
    """

    def __init__(self, connection: Connection, traceparent: str | None = None) -> None:
        self.adapters = Adapters(connection)
        self.aliases = Aliases(connection)
        self.samples = Samples(connection)
        self.selectors = Selectors(connection)
        self.soups = Soups(connection)
        self.statistics = Statistics(connection)
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
        self.whole = Whole(connection)


class Database:
    """One database by its SQLAlchemy URL, with at most `pool_size` connections.

    Threads share it. `read` and `write` raise Busy when neither a connection nor the turn to write comes in time, and
    Unavailable while the database does not answer; nothing needs to be done when it is back.
    """

    def __init__(self, url: str, *, pool_size: int = 16, busy_seconds: float = BUSY_SECONDS) -> None:
        self._backend = _backend(url)
        self.engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=busy_seconds,
            hide_parameters=True,  # errors are logged; what people sent is not
            json_serializer=partial(json.dumps, allow_nan=False),  # NaN is no JSON: refused when written, not when read
            **self._backend.engine_options(make_url(url), busy_seconds),
        )
        self._check_same = self._backend.prepare(self.engine, busy_seconds)
        self._turn = _Turn(busy_seconds)
        self.traceparent: Callable[[], str | None] = lambda: None
        """The current span, for the jobs that are enqueued in it."""

    @contextmanager
    def read(self) -> Iterator[Catalogue]:
        """A transaction that only reads: one consistent state of everything. What it writes is refused or dropped."""
        with self._transaction("read") as connection:
            yield Catalogue(connection, self.traceparent())
            connection.rollback()

    @contextmanager
    def glance(self) -> Iterator[Catalogue]:
        """As `read`, for what one statement finds: on PostgreSQL each sees the state of its own moment.

        No transaction is begun and ended there, which are two of three messages to the database.
        """
        with self._transaction("glance") as connection:
            yield Catalogue(connection, self.traceparent())
            connection.rollback()

    @contextmanager
    def write(self) -> Iterator[Catalogue]:
        """A transaction that writes: committed when the block ends, rolled back when it raises."""
        with self._turn, self._transaction("write") as connection:
            yield Catalogue(connection, self.traceparent())
            self._check_same()  # what goes into a file that was removed meanwhile is not kept
            with self.telling("commit"):
                connection.commit()
            self._check_same()

    @contextmanager
    def beside(self) -> Iterator[Catalogue]:
        """As `write`, without the turn, and not synced: for rows that no other write builds upon, a beat or a rate.

        Who changes the same row waits for some seconds at most (Busy). What a crash of the database loses is no more
        than the last second's.
        """
        with self._transaction("beside") as connection:
            yield Catalogue(connection, self.traceparent())
            with self.telling("commit"):
                connection.commit()

    @contextmanager
    def _transaction(self, mode: Mode) -> Iterator[Connection]:
        """A connection whose transaction has begun; what is not committed in it is rolled back."""
        self._check_same()
        with self.telling(mode), self.engine.connect() as connection:
            connection.execution_options(soup_mode=mode, **self._backend.transaction_options(mode)).begin()
            yield connection

    @contextmanager
    def telling(self, mode: Mode | None = None) -> Iterator[None]:
        """Raise the database's errors as ours where they are nobody's fault here: Busy, Unavailable, Invalid."""
        try:
            yield
        except PoolTimeout:
            raise Busy("Every database connection is in use; try again.", retry_after=RETRY_AFTER) from None
        except DBAPIError as error:
            told = self._backend.meaning(error, mode)
            if told is None:
                raise
            raise told from error

    @contextmanager
    def starting(self) -> Iterator[None]:
        """As `telling`, for whoever starts a server or migrates: with the driver's words on why it cannot be used."""
        try:
            yield
        except DBAPIError as error:
            why = str(error.orig).strip().partition("\n")[0]
            url = self.engine.url
            which, what = "", "check SOUP_DATABASE_URL"
            if url.get_backend_name() == "sqlite":  # any other URL may hold a password
                which, what = (
                    f" {url.database}",
                    "check SOUP_DATA and SOUP_DATABASE_URL, or put back a copy of that file",
                )
            raise Unavailable(f"The database{which} cannot be used ({why}): {what}.", param="database_url") from error

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


def _backend(url: str) -> Backend:
    """What we know of the database at this URL; raises InvalidParameter for one that is not served."""
    try:
        parsed = make_url(url)
        found = None if "@" in (parsed.host or "") else BACKENDS.get(parsed.drivername)
    except (ArgumentError, ValueError):  # which may quote the URL, and a URL holds a password
        found = None
    if found is None:
        raise InvalidParameter(
            "SOUP_DATABASE_URL must be 'sqlite:///FILE' or 'postgresql+psycopg://USER:PASSWORD@HOST/NAME', with every "
            "'@' of the password written as %40.",
            param="database_url",
        )
    return found
