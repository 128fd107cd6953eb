"""Blobs in a folder: durable before they are acknowledged, hashed once and again only when they are others."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.blobs import LocalBlobs, verified
from registry.blobs.verified import FileStamp, VerifiedBlobs
from registry.errors import DamagedBlob, Unavailable
from registry.names import sha256_digest
from tests.registry.damaged_files import flip, overwrite
from tests.registry.refusing_disk import failing
from tests.registry.together import together
from tests.repository import REPOSITORY

HELLO = sha256_digest(b"hello")
TEMPORARY = "0123" * 8


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
    ("number", "error", "words"),
    [
        (errno.ENOSPC, Unavailable, "is full"),
        (errno.EDQUOT, Unavailable, "is full"),
        (errno.EIO, Unavailable, "Input/"),
    ],
)
def test_a_disk_that_fails_leaves_nothing(folder, monkeypatch, step, number, error, words):
    store = LocalBlobs(folder)

    with monkeypatch.context() as patch:
        patch.setattr(os if step == "fsync" else Path, step, failing(number))
        with pytest.raises(error, match=words):
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
    (folder / "incoming" / TEMPORARY).write_bytes(b"half of some")
    (folder / "incoming" / "report.pdf").write_bytes(b"somebody else's")
    assert len(files(folder)) == 3
    assert LocalBlobs(folder).read(HELLO) == b"hello"
    assert files(folder) == [HELLO[7:], "report.pdf"]


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
    (folder / "incoming" / TEMPORARY).write_bytes(b"perhaps somebody's")
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    store.put_bytes(b"hello")
    assert LocalBlobs(folder).read(HELLO) == b"hello"
    assert (folder / "incoming" / TEMPORARY).exists()


def test_abandoned_files_are_removed_from_nfs_too(folder, nfs_locks):
    LocalBlobs(folder)
    (folder / "incoming" / TEMPORARY).write_bytes(b"half of some")
    LocalBlobs(folder)
    assert list((folder / "incoming").iterdir()) == []


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


# --- what is hashed, and what is remembered of it -------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "blobs")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were hashed."""
    names: list[str] = []
    real = hashlib.file_digest

    def counted(file, algorithm):
        names.append(Path(file.name).name)
        return real(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return names


def test_a_file_is_hashed_once_however_often_it_is_read(store, hashed):
    store.put_bytes(b"hello")
    for _ in range(3):
        assert store.read(HELLO) == b"hello"
        assert store.size(HELLO) == 5
        store.open(HELLO).close()
        assert store.is_whole(HELLO)
        store.put_bytes(b"hello")
    assert hashed == [HELLO[7:]]
    LocalBlobs(store.folder).read(HELLO)
    assert hashed == [HELLO[7:]] * 2, "another store believes nothing"


@pytest.fixture
def replaced(store: LocalBlobs) -> Callable[[bytes], None]:
    """Has another inode of the same size and times in the place of a blob."""

    def replace(data: bytes) -> None:
        path = store.place(HELLO)
        copy = path.with_name("copy")
        copy.write_bytes(data)
        os.utime(copy, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        copy.replace(path)

    return replace


def test_it_is_hashed_again_when_its_bytes_its_times_or_its_inode_are_others(store, hashed, replaced):
    store.put_bytes(b"hello")
    store.read(HELLO)
    overwrite(store.place(HELLO), b"hello")
    store.read(HELLO)
    replaced(b"hello")
    store.read(HELLO)
    assert len(hashed) == 3
    for damage in (lambda: flip(store.place(HELLO)), lambda: replaced(b"hellO")):
        damage()
        with pytest.raises(DamagedBlob):
            store.read(HELLO)
        store.put_bytes(b"hello")
        store.read(HELLO)


def test_many_that_want_it_at_once_wait_for_one_hash(store, hashed):
    store.put_bytes(b"hello")
    assert together(8, lambda _: store.read(HELLO)) == [b"hello"] * 8
    assert hashed == [HELLO[7:]]


def test_what_the_disk_does_not_give_is_damaged(store, monkeypatch):
    store.put_bytes(b"hello")
    monkeypatch.setattr(hashlib, "file_digest", failing(errno.EIO))
    with pytest.raises(DamagedBlob, match=rf"{HELLO} cannot be read on this server \(Input/output error\)"):
        store.read(HELLO)
    assert not store.is_whole(HELLO)


def test_a_repair_is_told_and_replaces_the_file_and_a_second_upload_is_not(store, caplog):
    store.put_bytes(b"hello")
    store.put_bytes(b"hello")
    with store.writer(HELLO, max_bytes=5) as writer:
        writer.write(b"hello")
        writer.commit()
    assert caplog.messages == []
    flip(store.place(HELLO))
    damaged = store.place(HELLO).read_bytes()
    with store.place(HELLO).open("rb") as file:
        store.put_bytes(b"hello")
        assert file.read() == damaged, "it is not written into"
    assert caplog.messages == [f"blob {HELLO} was damaged: the right bytes were sent again and have replaced it"]
    assert store.read(HELLO) == b"hello"


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(verified, "MAX_STAMPS", 2)
    blobs = VerifiedBlobs[FileStamp]()
    stamp = FileStamp(1, 2, 3, 4, 5)
    for name in "abc":
        blobs.add(name, stamp)
    assert [name for name in "abc" if blobs.has(name, stamp)] == ["b", "c"]
    assert not blobs.has("b", stamp._replace(inode=9))
    blobs.remove("b")
    assert not blobs.has("b", stamp)
