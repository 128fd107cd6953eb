"""Each file is hashed once, and again only when it is another; what is remembered of it is bounded."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path

import pytest

from registry.blobs import LocalBlobs
from registry.blobs.verified import FileStamp, VerifiedFiles
from registry.errors import DamagedBlob
from registry.names import sha256_digest
from tests.registry.damaged_files import flip, overwrite

HELLO = sha256_digest(b"hello")


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


def test_another_store_believes_nothing(store, hashed):
    store.put_bytes(b"hello")
    store.read(HELLO)
    LocalBlobs(store.folder).read(HELLO)
    assert len(hashed) == 2


def test_it_is_hashed_again_when_its_bytes_its_times_or_its_inode_are_others(store, hashed):
    store.put_bytes(b"hello")
    store.read(HELLO)
    path = store.place(HELLO)
    overwrite(path, b"hello")
    store.read(HELLO)
    copy = path.with_name("copy")
    copy.write_bytes(b"hello")
    os.utime(copy, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    copy.replace(path)
    store.read(HELLO)
    assert len(hashed) == 3
    flip(path)
    with pytest.raises(DamagedBlob):
        store.read(HELLO)


def test_damage_under_the_old_size_and_time_is_seen(store):
    """A copy that keeps times is another inode, or at least was changed at another time."""
    store.put_bytes(b"hello")
    store.read(HELLO)
    path = store.place(HELLO)
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    other = path.with_name("other")
    other.write_bytes(b"hellO")
    os.utime(other, ns=times)
    other.replace(path)
    with pytest.raises(DamagedBlob):
        store.read(HELLO)


def test_many_that_want_it_at_once_wait_for_one_hash(store, hashed):
    store.put_bytes(b"hello")
    start, read = threading.Barrier(8), []

    def work() -> None:
        start.wait()
        read.append(store.read(HELLO))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (read, hashed) == ([b"hello"] * 8, [HELLO[7:]])


def test_what_the_disk_does_not_give_is_damaged(store, monkeypatch):
    store.put_bytes(b"hello")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(hashlib, "file_digest", fail)
    with pytest.raises(DamagedBlob, match=rf"{HELLO} cannot be read on this server \(Input/output error\)"):
        store.read(HELLO)
    assert not store.is_whole(HELLO)


def test_the_repair_is_told_and_a_second_upload_is_not(store, caplog):
    store.put_bytes(b"hello")
    store.put_bytes(b"hello")
    with store.writer(HELLO, max_bytes=5) as writer:
        writer.write(b"hello")
        writer.commit()
    assert caplog.messages == []
    flip(store.place(HELLO))
    store.put_bytes(b"hello")
    assert caplog.messages == [f"blob {HELLO} was damaged: the right bytes were sent again and have replaced it"]


def test_a_repair_replaces_the_file_and_writes_into_nothing(store):
    store.put_bytes(b"hello")
    flip(store.place(HELLO))
    damaged = store.place(HELLO).read_bytes()
    with store.place(HELLO).open("rb") as file:
        store.put_bytes(b"hello")
        assert file.read() == damaged
    assert store.read(HELLO) == b"hello"


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first():
    verified = VerifiedFiles(max_files=2)
    stamp = FileStamp(1, 2, 3, 4, 5)
    verified.add("a", stamp)
    verified.add("b", stamp)
    assert verified.has("a", stamp)
    assert not verified.has("a", stamp._replace(inode=9))
    verified.add("c", stamp)
    assert [name for name in "abc" if verified.has(name, stamp)] == ["a", "c"]
    verified.remove("a")
    assert not verified.has("a", stamp)
