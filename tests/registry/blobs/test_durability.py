"""What LocalBlobs acknowledged is durable, and what it did not acknowledge leaves nothing: syncs, crashes, kill -9."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from registry.blobs import LocalBlobs
from registry.errors import Unavailable
from registry.names import sha256_digest
from tests.registry.refusing_disk import failing
from tests.repository import REPOSITORY

HELLO = sha256_digest(b"hello")


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "data" / "blobs"


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_the_file_is_synced_before_it_has_its_name_and_the_folders_after(folder, synced):
    store = LocalBlobs(folder)
    synced.clear()
    store.put_bytes(b"hello")
    name = HELLO[7:]
    temporary = synced[0].removeprefix("sync ")
    assert synced == [f"sync {temporary}", f"rename {temporary} {name}", f"sync {name[:2]}", "sync blobs"]
    assert temporary != name


def test_what_another_thread_just_renamed_is_synced_before_it_is_acknowledged(folder, synced):
    store = LocalBlobs(folder)
    store.put_bytes(b"hello")
    synced.clear()
    store.put_bytes(b"hello")
    assert synced == [f"sync {HELLO[7:9]}", "sync blobs"]


def test_the_folder_of_what_is_deleted_is_synced_once(folder, synced):
    """Else a crash brings back a file of which the catalogue says that it is removed."""
    store = LocalBlobs(folder)
    store.put_bytes(b"hello")
    sibling = HELLO[:-1] + ("0" if HELLO[-1] != "0" else "1")
    synced.clear()
    store.delete_all([HELLO, sibling, sha256_digest(b"never stored")])
    assert synced == [f"sync {HELLO[7:9]}"]
    synced.clear()
    store.delete(HELLO)  # perhaps deleted by a process that ended before it synced
    assert synced == [f"sync {HELLO[7:9]}"]


def test_a_new_folder_is_durable_itself(folder, synced):
    LocalBlobs(folder)
    assert synced == ["sync blobs", "sync data"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "told", "words"),
    [
        (errno.ENOSPC, Unavailable, "is full"),
        (errno.EDQUOT, Unavailable, "is full"),
        (errno.EIO, Unavailable, "Input/"),
    ],
)
def test_a_disk_that_fails_leaves_nothing(folder, monkeypatch, step, number, told, words):
    store = LocalBlobs(folder)

    with monkeypatch.context() as patch:
        patch.setattr(os if step == "fsync" else Path, step, failing(number))
        with pytest.raises(told, match=words):
            store.put_bytes(b"hello")
    assert files(folder) == []
    assert store.put_bytes(b"hello") == HELLO


def test_a_full_disk_that_shows_only_when_closing_leaves_nothing(folder):
    """Buffered bytes are flushed by close; its failure must not keep the temporary file."""
    writer = LocalBlobs(folder).writer(HELLO, max_bytes=9)

    with pytest.raises(Unavailable, match="is full"), writer:
        writer.write(b"hello")
        with Path("/dev/full").open("wb", buffering=0) as full:
            os.dup2(full.fileno(), writer._file.fileno())
    assert files(folder) == []


def test_left_overs_are_swept_at_the_next_start_and_blobs_are_not(folder):
    LocalBlobs(folder).put_bytes(b"hello")
    (folder / "incoming" / "0123").write_bytes(b"half of some")
    assert len(files(folder)) == 2
    assert LocalBlobs(folder).read(HELLO) == b"hello"
    assert files(folder) == [HELLO[7:]]


def test_another_server_that_shares_the_folder_does_not_sweep_uploads(folder):
    store = LocalBlobs(folder)
    with store.writer(HELLO, max_bytes=9) as writer:
        writer.write(b"hello")
        LocalBlobs(folder).put_bytes(b"other")
        writer.commit()
    assert store.read(HELLO) == b"hello"
    assert sorted(LocalBlobs(folder).digests()) == sorted([HELLO, sha256_digest(b"other")])


def test_a_scratch_file_is_held_and_goes_however_its_block_ends(folder):
    store = LocalBlobs(folder)
    with pytest.raises(RuntimeError), store.scratch() as file:
        file.write_bytes(b"of another process")
        LocalBlobs(folder)  # sweeps what nobody holds
        assert file.read_bytes() == b"of another process"
        raise RuntimeError
    assert files(folder) == []


def test_a_sweep_between_the_making_of_a_temporary_file_and_its_lock_loses_nothing(folder, monkeypatch):
    """The sweep of another process comes at the worst moment, once."""
    store = LocalBlobs(folder)
    flock = fcntl.flock
    swept = []

    def late(file, operation):
        if not swept:
            swept.append(file)
            LocalBlobs(folder)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert store.put_bytes(b"hello") == HELLO
    assert (len(swept), files(folder)) == (1, [HELLO[7:]])


def test_a_file_system_without_locks_stores_and_sweeps_nothing(folder, monkeypatch):
    store = LocalBlobs(folder)
    (folder / "incoming" / "0123").write_bytes(b"perhaps somebody's")
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    store.put_bytes(b"hello")
    assert LocalBlobs(folder).read(HELLO) == b"hello"
    assert (folder / "incoming" / "0123").exists()


def test_other_files_in_the_folder_are_no_blobs(folder):
    store = LocalBlobs(folder)
    (folder / "ab").mkdir()
    (folder / "ab" / ".nfs0001").write_bytes(b"")
    (folder / "ab" / ("AB" * 32)).write_bytes(b"")
    assert list(store.digests()) == []
    store.place(HELLO).mkdir(parents=True)
    assert not store.has(HELLO)


WRITER = """
import hashlib, itertools, sys
from pathlib import Path
from registry.blobs import LocalBlobs

store = LocalBlobs(Path(sys.argv[1]))
for number in itertools.count(int(sys.argv[2])):
    data = str(number).encode() * 100_000
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    with store.writer(digest, max_bytes=len(data)) as writer:
        for start in range(0, len(data), 10_000):
            writer.write(data[start : start + 10_000])
        writer.commit()
    print(digest, flush=True)
"""


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_acknowledged_and_leaves_nothing_half(folder):
    acknowledged: list[str] = []
    for life in range(2):
        command = [sys.executable, "-c", WRITER, str(folder), str(1000 * (life + 1))]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
        )
        acknowledged += [child.stdout.readline().strip() for _ in range(2 + 9 * life)]
        child.kill()  # at whatever it is doing now
        rest = child.stdout.read().split("\n")
        acknowledged += rest[:-1]
        child.stdout.close()
        child.wait()
        store = LocalBlobs(folder)
        assert set(acknowledged) <= set(store.digests())
        assert all(sha256_digest(store.read(digest)) == digest for digest in store.digests())
        assert list((folder / "incoming").iterdir()) == []
