"""Each file is hashed once, and again only when it is another; what is remembered of it is bounded."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from registry.blobs import LocalBlobs, verified
from registry.blobs.verified import FileStamp, VerifiedBlobs
from registry.errors import DamagedBlob
from registry.names import sha256_digest
from tests.registry.damaged_files import flip, overwrite
from tests.registry.refusing_disk import failing
from tests.registry.together import together

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
