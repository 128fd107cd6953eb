"""Files that grow part by part: what was kept is synced, what was not is gone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from registry.blobs import AcknowledgedUpload, FileUpload, FileUploads, LocalBlobs
from registry.errors import Conflict, DigestMismatch, Internal, Unavailable
from registry.names import sha256_digest
from tests.registry.refusing_disk import failing

ID = "upload-1"


@pytest.fixture
def files(tmp_path: Path) -> FileUploads:
    return FileUploads(LocalBlobs(tmp_path / "data" / "blobs"))


def add(files: FileUploads, data: bytes, start: int) -> None:
    with files.open(ID) as file:
        file.begin(AcknowledgedUpload(ID, start))
        file.write(data)
        assert file.keep() is None
        assert file.end == start + len(data)


def finish(files: FileUploads, data: bytes) -> None:
    with files.open(ID) as file:
        file.begin(AcknowledgedUpload(ID, len(data)))
        with files.blobs.writer(sha256_digest(data), max_bytes=len(data), length=len(data)) as writer:
            for chunk in file.chunks():
                writer.write(chunk)
            writer.commit()


def test_a_part_is_synced_before_it_is_kept_and_its_name_when_it_is_made(files, synced):
    add(files, b"hello", 0)
    assert synced[-3:] == ["sync uploads", "sync blobs", f"sync {ID}"]
    synced.clear()
    add(files, b" world", 5)
    assert synced == [f"sync {ID}"]


def test_a_part_that_broke_off_is_cut_off_again_and_parts_of_several_processes_make_one_blob(files):
    add(files, b"hello", 0)
    with pytest.raises(RuntimeError), files.open(ID) as file:
        file.begin(AcknowledgedUpload(ID, 5))
        file.write(b"lost")
        raise RuntimeError
    assert files.size(ID) == 5
    add(files, b" wor", 5)
    second = FileUploads(files.blobs)
    add(second, b"ld", 9)
    finish(second, b"hello world")


def test_a_file_that_is_being_written_on_nfs_is_not_removed(files, nfs_locks):
    add(files, b"hello", 0)
    with files.open(ID):
        assert not FileUploads(files.blobs).remove(ID)
    assert files.size(ID) == 5


def test_what_another_process_changed_is_read(files):
    """A file that was lost and sent again elsewhere: the hash of what this process saw is not the file's."""
    add(files, b"hello", 0)
    (files.folder / ID).unlink()
    add(FileUploads(files.blobs), b"other", 0)
    with pytest.raises(DigestMismatch):
        finish(files, b"hello")
    finish(files, b"other")


def test_what_is_stored_stays_an_upload_until_it_is_removed(files):
    """A crash between the two loses nothing: the upload can be finished again, whatever became of the blob."""
    add(files, b"hello", 0)
    finish(files, b"hello")
    files.blobs.delete(sha256_digest(b"hello"))
    finish(files, b"hello")
    with files.open(ID) as file:
        file.remove()
    assert files.size(ID) == 0
    assert files.blobs.read(sha256_digest(b"hello")) == b"hello"


def test_more_of_what_is_a_blob_already_does_not_change_that(files):
    add(files, b"hello", 0)
    finish(files, b"hello")
    add(files, b" world", 5)
    finish(files, b"hello world")
    assert files.blobs.read(sha256_digest(b"hello")) == b"hello"
    assert files.blobs.read(sha256_digest(b"hello world")) == b"hello world"


def test_what_was_never_kept_is_cut_off(files):
    add(files, b"hello", 0)
    with (files.folder / ID).open("ab") as file:
        file.write(b"of a process that was killed")
    add(files, b" world", 5)
    finish(files, b"hello world")


def test_one_writes_at_a_time(files):
    with files.open(ID) as file:
        file.begin(AcknowledgedUpload(ID, 0))
        for uploads in (files, FileUploads(files.blobs)):
            with pytest.raises(Conflict), uploads.open(ID):
                pass
        assert not files.remove(ID)
        file.write(b"hello")
        file.keep()
    assert files.remove(ID)
    assert not list(files.folder.iterdir())


def test_a_file_that_a_sweep_took_between_opening_and_holding_is_made_again(files, monkeypatch):
    opened = FileUpload._open
    removals = []

    def slow(self):
        file = opened(self)
        if not removals:
            removals.append(files.remove(ID))
        return file

    monkeypatch.setattr(FileUpload, "_open", slow)
    add(files, b"hello", 0)
    assert removals == [True]
    finish(files, b"hello")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_keeps_what_was_kept(files, monkeypatch, number):
    add(files, b"hello", 0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(number))
        with pytest.raises(Unavailable):
            add(files, b" world", 5)
    assert (files.folder / ID).read_bytes() == b"hello"
    add(files, b" world", 5)
    finish(files, b"hello world")


def test_it_is_used_inside_of_with(files):
    with pytest.raises(Internal):
        files.open(ID).begin(AcknowledgedUpload(ID, 0))
