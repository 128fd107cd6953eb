"""Connections and transactions. The only place that knows which database it talks to.

`Database.read()` and `.write()` give a `Catalogue` bound to one transaction; leaving a write commits it, an error
rolls it back. On SQLite a write is BEGIN IMMEDIATE: read-then-update under a plain BEGIN loses updates.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text

from registry.catalogue.adapters import Adapters
from registry.catalogue.aliases import Aliases
from registry.catalogue.audit import Audit
from registry.catalogue.blobs import Blobs
from registry.catalogue.jobs import Jobs
from registry.catalogue.keys import Keys
from registry.catalogue.samples import Samples
from registry.catalogue.selectors import Selectors
from registry.catalogue.soups import Soups

BUSY_SECONDS = 30
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY_SECONDS * 1000}")


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
    """One database by its SQLAlchemy URL, with at most `pool_size` connections."""

    def __init__(self, url: str, *, pool_size: int = 16) -> None:
        self.engine = _engine(url, pool_size)

    @contextmanager
    def read(self) -> Iterator[Catalogue]:
        """A transaction that only reads: one consistent state of everything."""
        with self.engine.connect() as connection:
            yield Catalogue(connection)
            connection.rollback()

    @contextmanager
    def write(self) -> Iterator[Catalogue]:
        """A transaction that writes: committed when the block ends, rolled back when it raises."""
        with self.engine.connect().execution_options(soup_write=True) as connection, connection.begin():
            yield Catalogue(connection)

    def ping(self) -> None:
        """Raise whatever the database raises when it cannot answer."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def _engine(url: str, pool_size: int) -> Engine:
    sqlite = url.startswith("sqlite")
    options: dict[str, Any] = {"connect_args": {"check_same_thread": False, "timeout": BUSY_SECONDS}} if sqlite else {}
    engine = create_engine(url, pool_size=pool_size, max_overflow=0, pool_timeout=BUSY_SECONDS, **options)
    if sqlite:
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """The driver must not begin transactions of its own; the pragmas hold per connection."""
    connection.isolation_level = None
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("soup_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
