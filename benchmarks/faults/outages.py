"""Faults of a running server's environment, and their end: the server must report each, recover, and lose nothing.

Databases that are stopped, held or removed, disks that are full, folders that are gone, files that are damaged, and
migrations that are killed. A fault is survived under three conditions. Requests during the fault are refused or
answered as expected. Afterwards the server accepts the next push, without a restart unless the fault requires one. All
acknowledged rows, bytes and jobs are present.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import migrations
from adaptersoup.client.client import SoupClient
from benchmarks.faults.content import WEIGHTS, adapter, passages
from benchmarks.faults.server import Killable, Stoppable, database, killable
from registry.catalogue.database import Database
from registry.errors import DamagedBlob, SoupError, Unavailable
from registry.spec import CosineSpec, SampleSource

DISK = 400 * 2**20
"""Bytes of the disk that is filled."""
HELD_SECONDS = 1.0
BEFORE = "0007"
"""The revision that a migration begins at which is killed."""
KILLED_WITHIN = 2.5
"""Seconds from the start of a migration within which its kill comes."""
SPEC = CosineSpec(encoder="base")


@dataclass
class Place:
    """A server, where its data lies, and what it acknowledged."""

    server: Killable
    postgres: Stoppable | None
    disk: Path | None
    """A small disk of its own that the data is on, where one may be mounted."""
    acknowledged: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def blobs(self) -> Path:
        """The folder of the blobs."""
        return self.server.data / "blobs"

    def file(self, digest: str) -> Path:
        """Where a blob lies."""
        return self.blobs / digest[7:9] / digest[7:]

    def restart(self) -> None:
        """kill -9, and start again."""
        if self.server.process is not None:
            self.server.kill()
        self.server.start()


@dataclass(frozen=True)
class Fault:
    """A fault: how to cause and repair it, the requests meanwhile, and their expected refusal, if any."""

    name: str
    harmed: Callable[[Place], AbstractContextManager[None]]
    requests: Callable[[Place, SoupClient], None]
    refused: type[SoupError] | None = None


@dataclass
class Survived:
    """The result of one fault."""

    fault: str
    database: str
    failures: list[str] = field(default_factory=list)


# --- harm -----------------------------------------------------------------------------------------


@contextmanager
def _blobs_gone(place: Place) -> Iterator[None]:
    away = place.blobs.with_name("away")
    place.blobs.rename(away)
    yield
    away.rename(place.blobs)


@contextmanager
def _another_folder(place: Place) -> Iterator[None]:
    with _blobs_gone(place):
        place.blobs.mkdir()
        yield
        place.blobs.rmdir()


@contextmanager
def _full_disk(place: Place) -> Iterator[None]:
    assert place.disk is not None
    ballast = place.disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))
    yield
    ballast.unlink()


@contextmanager
def _damaged_weights(place: Place) -> Iterator[None]:
    _flip(place.file(place.acknowledged[0]["weights_blob"]))
    yield
    with place.server.client() as client:
        client.push(adapter("kept/a0", 0, sample=True))


@contextmanager
def _damaged_vectors(place: Place) -> Iterator[None]:
    """Every selector's state and all vectors, which the server makes again by itself."""
    with closing(Database(_url(place))) as database, database.read() as catalogue:
        rows = catalogue.selectors.list(None, limit=100).rows
        digests = {row.state_blob for row in rows}
        for row in rows:
            if row.encoder_digest is not None:
                stored = catalogue.adapters.vectors(row.pool.base_fingerprint, row.encoder_digest)
                digests |= {embedding.blob for embedding in stored.values()}
    for digest in digests:
        _flip(place.file(digest))
    yield


@contextmanager
def _held_database(place: Place) -> Iterator[None]:
    """Another process has the turn to write."""
    connection = sqlite3.connect(place.server.data / "soup.db", isolation_level=None, check_same_thread=False)
    with closing(connection):
        connection.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(HELD_SECONDS, connection.rollback)
        timer.start()
        yield
        timer.join()


@contextmanager
def _removed_database(place: Place) -> Iterator[None]:
    path = place.server.data / "soup.db"
    path.rename(path.with_name("away.db"))
    yield
    place.server.kill()
    path.with_name("away.db").rename(path)
    place.server.start()


@contextmanager
def _stopped_database(place: Place) -> Iterator[None]:
    assert place.postgres is not None
    place.postgres.stop()
    yield
    place.postgres.start()


@contextmanager
def _killed_migration(place: Place) -> Iterator[None]:
    """An older schema, a migration that is killed, and another that ends."""
    place.server.kill()
    with closing(Database(_url(place))) as database:
        migrations.downgrade(database.engine, BEFORE)
    command = place.server.command("migrate", "--data", str(place.server.data))
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(command, env=place.server.environment, stdout=nowhere, stderr=nowhere) as process:
        time.sleep(random.Random(str(place.server.data)).uniform(0, KILLED_WITHIN))
        process.kill()
    yield
    done = place.server.soup("migrate", "--data", str(place.server.data))
    if done.returncode:
        raise Unavailable(f"`soup migrate` after the kill: {done.stderr}")
    place.server.start()


def _flip(path: Path) -> None:
    """Change a byte of a file."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _url(place: Place) -> str:
    return place.server.database_url or f"sqlite:///{place.server.data / 'soup.db'}"


# --- what is asked meanwhile ----------------------------------------------------------------------


def _pushing(_: Place, client: SoupClient) -> None:
    client.push(adapter("meanwhile/one", 5000 + random.randrange(10**6), sample=False))


def _uploading(_: Place, client: SoupClient) -> None:
    client.upload(random.randbytes(2**20))


def _downloading(place: Place, client: SoupClient) -> None:
    _download(client, place.acknowledged[0])


def _selecting(_: Place, client: SoupClient) -> None:
    client.select(SampleSource(texts=passages(77)), selector=SPEC)


FAULTS = (
    Fault("the folder of the blobs is gone", _blobs_gone, _pushing, Unavailable),
    Fault("the folder of the blobs is another one", _another_folder, _pushing, Unavailable),
    Fault("an adapter's weights are damaged", _damaged_weights, _downloading, DamagedBlob),
    Fault("selectors and vectors are damaged", _damaged_vectors, _selecting),
    Fault("a migration is killed", _killed_migration, lambda _place, _client: None),
)
ON_SQLITE = (
    Fault("another process writes to the database", _held_database, _pushing),
    Fault("the database file is removed", _removed_database, _pushing, Unavailable),
)
ON_POSTGRESQL = (Fault("the database is stopped", _stopped_database, _pushing, Unavailable),)
ON_A_DISK = (Fault("the disk is full", _full_disk, _uploading, Unavailable),)


def run_faults(kind: str) -> list[Survived]:
    """Run all faults of a kind of database in turn, on one server."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _disk(Path(folder)) as disk,
        database(kind) as postgres,
        killable(disk or Path(folder), postgres) as server,
    ):
        place = Place(server, postgres, disk)
        with server.client() as client:
            for seed in range(3):
                _acknowledged(place, client, seed)
                client.wait_job(str(place.acknowledged[-1]["job"]))
            client.fit(SPEC)
        faults = (
            *FAULTS,
            *(ON_SQLITE if postgres is None else ON_POSTGRESQL),
            *(() if disk is None else ON_A_DISK),
        )
        return [_run(fault, place, number + 3) for number, fault in enumerate(faults)]


@contextmanager
def _disk(folder: Path) -> Iterator[Path | None]:
    """A small disk of its own; None where this process may not mount one."""
    disk = folder / "disk"
    disk.mkdir()
    command = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)]
    if command is None or subprocess.run([command, *options], capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run([str(shutil.which("umount")), "--lazy", str(disk)], check=True)


def _acknowledged(place: Place, client: SoupClient, seed: int) -> None:
    place.acknowledged.append(client.push(adapter(f"kept/a{seed}", seed, sample=True)))


def _run(fault: Fault, place: Place, seed: int) -> Survived:
    outcome = Survived(fault.name, "sqlite" if place.postgres is None else "postgresql")
    try:
        with fault.harmed(place):
            outcome.failures += _meanwhile(fault, place)
        with place.server.client() as client:
            _acknowledged(place, client, seed)
            for acknowledgement in place.acknowledged:
                outcome.failures += _missing(client, acknowledgement)
    except SoupError as error:
        outcome.failures.append(f"afterwards: {error.message}")
        place.restart()
    return outcome


def _meanwhile(fault: Fault, place: Place) -> list[str]:
    """The problem with the answer during the fault."""
    if place.server.process is None:
        return []
    with place.server.client() as client:
        try:
            fault.requests(place, client)
        except SoupError as error:
            wrong = [] if fault.refused is type(error) else [f"refused with {error.code}: {error.message}"]
        else:
            wrong = [] if fault.refused is None else [f"answered, and not refused as {fault.refused.code}"]
    return wrong if place.server.process.poll() is None else [*wrong, "the server has ended"]


def _missing(client: SoupClient, acknowledgement: Mapping[str, Any]) -> list[str]:
    try:
        _download(client, acknowledgement)
        job = client.wait_job(str(acknowledgement["job"]))
    except SoupError as error:
        return [f"{acknowledgement['ref']}: {error.message}"]
    return [] if job["state"] == "succeeded" else [f"{acknowledgement['ref']}: its sample's job is {job['state']}"]


def _download(client: SoupClient, acknowledgement: Mapping[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        client.download(
            str(acknowledgement["ref"]), WEIGHTS, Path(folder) / WEIGHTS, digest=str(acknowledgement["weights_blob"])
        )
