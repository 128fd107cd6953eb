"""A server put into a fault and out of it: a full disk, folders unmounted and read-only, a database held by others.

Each time it says so in a sentence, goes on by itself when that is over, and has all that it acknowledged.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from registry.catalogue import Database
from registry.names import sha256_digest
from service import runtime as runtime_module
from service.jobs import runner as jobs_module
from tests.registry.damaged_files import flip
from tests.service.answers import answered, temporary_refusal
from tests.service.cluster import ended, until
from tests.service.passages import passages
from tests.service.servers import World, opened_world

pytestmark = pytest.mark.slow

KEY = {"name": "k" * 60, "scopes": ["read"], "namespaces": None}
DISK = 12 * 2**20
HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""


def mount(*options: object) -> None:
    done = subprocess.run(["mount", *map(str, options)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this process may not mount: {done.stderr.strip()}")


def unmount(folder: Path) -> None:
    subprocess.run(["umount", folder], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder)
    yield folder
    unmount(folder)


served = partial(opened_world, ready_seconds=0, job_workers=0)


def checks(world: World) -> dict[str, str]:
    return dict(world.client.get("/readyz").json()["checks"])


def stored(world: World, data: bytes) -> Any:
    return world.client.put(f"/v1/blobs/{sha256_digest(data)}", content=data)


class TestFullDisk:
    def test_nothing_acknowledged_is_lost_and_it_goes_on_when_there_is_room(self, disk: Path, allowlist: Path) -> None:
        data = disk / "data"
        with served(data, allowlist) as world:
            pushed = world.push("acme/there", sample={"texts": passages("court", 25)})
            keys = [world.key(["read"])]
            fill(disk)
            assert "is full (No space left on device)" in temporary_refusal(stored(world, b"x" * 100_000))
            assert checks(world)["blobs"] == "is full"
            refusal = None
            while refusal is None:  # what the database has room for in its files is stored yet
                answer = world.client.post("/v1/keys", json=KEY)
                keys += [answer.json()["secret"]] if answer.status_code == 201 else []
                refusal = None if answer.status_code == 201 else temporary_refusal(answer)
            assert refusal == "The disk of the database is full. Try again when there is room."
            whole(world, pushed, keys)
            (disk / "ballast").unlink()
            assert checks(world)["blobs"] == "ok"
            assert stored(world, b"x" * 100_000).status_code == 201
            world.push("acme/later", seed=1)
            keys.append(world.key(["read"]))
            whole(world, pushed, keys)
        with served(data, allowlist) as world:
            whole(world, pushed, keys)
            assert [row["name"] for row in world.client.get("/v1/adapters").json()["data"]] == ["later", "there"]


def fill(disk: Path) -> None:
    """Take every byte that is left."""
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)


def whole(world: World, pushed: dict[str, Any], keys: list[str]) -> None:
    """Assert that an acknowledged push is there, is served, and has its bytes."""
    for key in keys:
        answer = world.client.get("/v1/adapters/acme/there", headers=world.headers(key))
        assert answer.json()["digest"] == pushed["digest"]
    body = {"model": "acme/there", "prompt": "a", "max_tokens": 1}
    assert world.client.post("/v1/completions", json=body).status_code == 200
    assert world.client.get(f"/v1/jobs/{pushed['job']}").json()["state"] == "queued"


class TestMounts:
    """A disk that is not there leaves an empty folder, which `test_blob_folder.py` asks about."""

    @pytest.fixture
    def mounted(self, tmp_path: Path) -> Iterator[Path]:
        """A folder of blobs that lies on a file system of its own."""
        folder = tmp_path / "data" / "blobs"
        folder.mkdir(parents=True)
        (tmp_path / "disk").mkdir()
        mount("--bind", tmp_path / "disk", folder)
        yield folder
        unmount(folder)

    def test_read_only_and_writable_again(self, mounted: Path, allowlist: Path, tmp_path: Path) -> None:
        with served(tmp_path / "data", allowlist) as world:
            blob = world.push("acme/there")["weights_blob"]
            mount("-o", "remount,ro,bind", mounted)
            try:
                assert "is read-only (Read-only file system)" in temporary_refusal(stored(world, b"new"))
                assert checks(world)["blobs"] == "is read-only"
                assert world.client.get(f"/v1/blobs/{blob}").status_code == 200
            finally:
                mount("-o", "remount,rw,bind", mounted)
            assert checks(world)["blobs"] == "ok"
            assert stored(world, b"new").status_code == 201


class TestLockedDatabase:
    """Another process holds SQLite's file, as a backup tool does that locks it."""

    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runtime_module, "Database", partial(Database, busy_seconds=0.5))
        monkeypatch.setattr(jobs_module, "IDLE_SECONDS", 0.05)

    def test_reads_are_answered_writes_hear_of_it_and_jobs_wait(
        self, allowlist: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with served(tmp_path / "data", allowlist, job_workers=1) as world:
            world.push("acme/there")
            with write_turn_taken(tmp_path / "data" / "soup.db"):
                for answer in (
                    world.client.post("/v1/keys", json=KEY),
                    stored(world, b"new"),
                    world.client.patch("/v1/adapters/acme/there", json={"domain": "other"}),
                ):
                    assert temporary_refusal(answer, 429).endswith(": try again.")
                assert world.client.get("/v1/adapters/acme/there").json()["domain"] == "tests"
                assert set(checks(world).values()) == {"ok"}
                until(lambda: any("no job can be claimed" in message for message in caplog.messages))
            assert stored(world, b"new").status_code == 201
            pushed = world.push("acme/later", seed=1, sample={"texts": passages("court", 25)})
            assert ended(world.client, pushed["job"])["state"] == "succeeded"


@contextmanager
def write_turn_taken(path: Path) -> Iterator[None]:
    """The turn to write, in another process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.stdin.close()


class TestDamage:
    def test_vectors_and_selectors_are_made_again_by_themselves(self, allowlist: Path, tmp_path: Path) -> None:
        spec = {"kind": "cosine", "encoder": "base"}
        body = {"sample": {"texts": passages("court", 25, seed=1)}, "selector": spec, "wait": 60}
        with served(tmp_path / "data", allowlist, job_workers=1, refit_delay_seconds=0.0) as world:
            for seed, domain in enumerate(("court", "kitchen")):
                pushed = world.push(f"acme/{domain}", seed=seed, domain=domain, sample={"texts": passages(domain, 25)})
                assert ended(world.client, pushed["job"])["state"] == "succeeded"
            first_answer = selected(world, body)
            with world.runtime.database.read() as catalogue:
                row = catalogue.selectors.get(None, first_answer["selector"])
                (vectors, *_) = catalogue.adapters.vectors(row.pool.base_fingerprint, row.encoder_digest).values()
            for digest in (row.state_blob, vectors.blob):
                flip(world.runtime.settings.blobs_dir / digest[7:9] / digest[7:])
            selected(world, body)  # without the one whose vectors are damaged, unless they are there again
            actions = [entry["action"] for entry in world.client.get("/v1/audit").json()["data"]]
            assert "sample.embed_again" in actions
            until(lambda: selected(world, body)["selector"] == first_answer["selector"])
            assert selected(world, body)["selection"] == first_answer["selection"]
            assert all(world.registry.blobs.is_whole(digest) for digest in (row.state_blob, vectors.blob))


def selected(world: World, body: dict[str, Any]) -> dict[str, Any]:
    return dict(answered(world.client.post("/v1/select", json=body)))
