"""A folder that is gone, is another one, is full or cannot be written: told in one sentence, logged once, and over by
itself."""

from __future__ import annotations

import errno
import logging
import os
import stat
from datetime import date
from pathlib import Path

import pytest

from registry.blobs import LocalBlobs
from registry.errors import DamagedBlob, Unavailable
from registry.names import sha256_digest
from registry.spec import StoreMark
from tests.registry.refusing_disk import failing, refuse_new_files

HELLO = sha256_digest(b"hello")
MARK = StoreMark(store="0" * 32, generation=1)


@pytest.fixture
def store(tmp_path: Path) -> LocalBlobs:
    """A store as a server has it: with a mark, and one blob."""
    store = LocalBlobs(tmp_path / "blobs")
    store.set_aside.set_mark(MARK)
    store.put_bytes(b"hello")
    return store


def put_away(store: LocalBlobs) -> Path:
    """Have the folder elsewhere, as an unmounted one."""
    elsewhere = store.folder.with_name("elsewhere")
    store.folder.rename(elsewhere)
    return elsewhere


def check_out_of_use(store: LocalBlobs, words: str) -> None:
    """Everything but deleting nothing says the same."""
    for use in (
        lambda: store.put_bytes(b"more"),
        lambda: store.put_bytes(b"hello"),
        lambda: store.read(HELLO),
        lambda: store.size(HELLO),
        lambda: store.open(HELLO),
        lambda: store.delete(HELLO),
        lambda: store.is_whole(HELLO),
    ):
        with pytest.raises(Unavailable, match=words) as caught:
            use()
        assert str(store.folder) not in caught.value.message


def check_back(store: LocalBlobs) -> None:
    assert store.probe() is None
    assert not store.is_failing
    assert store.read(HELLO) == b"hello"
    assert store.read(store.put_bytes(b"more")) == b"more"


@pytest.mark.parametrize("replacement", ["nothing", "a file", "an empty folder", "another store's folder"])
def test_a_folder_that_is_gone_or_another_and_comes_back(store, replacement, caplog):
    elsewhere = put_away(store)
    if replacement == "a file":
        store.folder.write_text("")
    elif replacement == "an empty folder":
        store.folder.mkdir()
    elif replacement == "another store's folder":
        LocalBlobs(store.folder).set_aside.set_mark(StoreMark(store="1" * 32, generation=1))
    problem = "is another one" if "folder" in replacement else "is gone"
    with caplog.at_level(logging.INFO):
        check_out_of_use(store, "is not the one that the server" if "folder" in replacement else "is gone: mount it")
        assert (store.probe(), store.is_failing) == (problem, True)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"the folder of the blobs {store.folder} {problem}: " in caplog.text
    if replacement != "nothing":
        assert replacement == "another store's folder" or not store.folder.is_dir() or not any(store.folder.iterdir())
        store.folder.rename(store.folder.with_name("wrong"))
    elsewhere.rename(store.folder)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        check_back(store)
    assert caplog.messages == [f"the folder of the blobs {store.folder} can be used again"]


def test_a_mark_that_is_gone_or_no_mark(store):
    for change in (lambda mark: mark.write_text("{}"), lambda mark: mark.unlink()):
        change(store.folder / "store.json")
        with pytest.raises(Unavailable, match=r"its store.json is missing or another's.* restart the server where"):
            store.put_bytes(b"more")
        with pytest.raises(Unavailable):
            store.delete(HELLO)
        assert store.probe() == "is another one"
        assert store.read(HELLO) == b"hello"  # which is what it is, wherever it lies
    store.set_aside.set_mark(MARK)
    check_back(store)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: LocalBlobs(folder).set_aside.set_mark(MARK.model_copy(update={"generation": 2})),
        lambda folder: (folder / "incoming").rmdir(),
    ],
    ids=["servers that share it start meanwhile", "it was copied back without what was on its way"],
)
def test_what_changes_nothing_for_this_server(store, change):
    change(store.folder)
    check_back(store)


@pytest.mark.parametrize(
    ("number", "problem", "words"),
    [
        (errno.EROFS, "is read-only", r"is read-only \(Read-only file system\).* Make its file system writable again"),
        (errno.EACCES, "may not be used", "give it back to the server's user"),
        (errno.ENOSPC, "is full", r"is full \(No space left on device\).* Try again when there is space"),
        (errno.EIO, "fails", r"cannot be used \(Input/output error\): look at its disk"),
    ],
)
def test_a_folder_that_takes_no_file_is_read_and_says_why(store, monkeypatch, caplog, number, problem, words):
    with caplog.at_level(logging.INFO):
        with monkeypatch.context() as patch:
            refuse_new_files(patch, number)
            for _ in range(3):
                with pytest.raises(Unavailable, match=words):
                    store.put_bytes(b"more")
                assert store.read(HELLO) == b"hello"
                assert (store.probe(), store.is_failing) == (problem, True)
        store.put_bytes(b"more")  # nobody need look at it for it to be over
        assert not store.is_failing
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_an_upload_during_which_it_goes_leaves_nothing_and_says_so(store):
    more = sha256_digest(b"more")
    with pytest.raises(Unavailable, match="is gone"), store.writer(more, max_bytes=9) as writer:
        writer.write(b"mo")
        elsewhere = put_away(store)
        writer.write(b"re")
        writer.commit()
    elsewhere.rename(store.folder)
    assert list(store.digests()) == [HELLO]
    assert LocalBlobs(store.folder).put_bytes(b"hello") == HELLO
    assert list((store.folder / "incoming").iterdir()) == []


def test_a_disk_that_has_no_room_for_one_file_is_not_full(store, monkeypatch):
    """It is full if a probe finds no room either: else one large file would keep a server from being ready."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.ENOSPC))
        with pytest.raises(Unavailable, match="is full"):
            store.put_bytes(b"x" * 50_000)
        assert store.is_failing
        assert store.probe() is None
    assert not store.is_failing


def test_looking_leaves_nothing_behind(store):
    paths = sorted(store.folder.rglob("*"))
    assert store.probe() is None
    assert sorted(store.folder.rglob("*")) == paths


def test_a_process_of_a_server_makes_no_folder(store, tmp_path):
    missing = LocalBlobs(tmp_path / "nothing", make=False)
    with pytest.raises(Unavailable, match="is gone"):
        missing.put_bytes(b"hello")
    assert not (tmp_path / "nothing").exists()
    child = LocalBlobs(store.folder, make=False)
    assert child.read(HELLO) == b"hello"
    elsewhere = put_away(store)
    store.folder.mkdir()
    with pytest.raises(Unavailable):
        child.put_bytes(b"more")
    with pytest.raises(Unavailable):
        LocalBlobs(store.folder, make=False).put_bytes(b"more")
    assert list(store.folder.iterdir()) == []
    assert sorted(path.name for path in elsewhere.iterdir()) == [HELLO[7:9], "incoming", "store.json"]


def test_one_file_that_is_lost_is_no_trouble_of_the_folder(store):
    store.place(HELLO).unlink()
    with pytest.raises(DamagedBlob, match=f"{HELLO} is missing"):
        store.read(HELLO)
    assert (store.is_failing, store.probe()) == (False, None)


def modes_of(folder: Path) -> tuple[set[int], set[int]]:
    """The modes of the folders and of the files in a folder."""
    paths = list(folder.rglob("*"))
    by_kind = ([path for path in paths if path.is_dir()], [path for path in paths if path.is_file()])
    folders, files = ({stat.S_IMODE(path.stat().st_mode) for path in kind} for kind in by_kind)
    return folders, files


@pytest.mark.parametrize(
    ("initial_mode", "folder", "folders", "files"),
    [
        pytest.param(None, 0o700, 0o700, 0o600, id="new"),
        pytest.param(0o755, 0o755, 0o700, 0o600, id="the operator's"),
        pytest.param(0o2770, 0o2770, 0o2770, 0o660, id="of a group"),
    ],
)
def test_blobs_are_closed_to_other_users(tmp_path, initial_mode, folder, folders, files):
    path, umask = tmp_path / "parent" / "blobs", os.umask(0)
    try:
        if initial_mode is not None:
            path.mkdir(parents=True)
            path.chmod(initial_mode)
        store = LocalBlobs(path)
        store.set_aside.set_mark(MARK)
        store.put_bytes(b"hello")
        store.set_aside.put(store.put_bytes(b"aside"), date(2026, 1, 1))
        with store.uploads().open("upload-1"):
            assert stat.S_IMODE(path.stat().st_mode) == folder
            assert modes_of(path) == ({folders}, {files})
    finally:
        os.umask(umask)


def test_copies_that_were_set_aside_are_deleted_only_if_asked_for(store):
    digest = store.put_bytes(b"aside")
    store.set_aside.put(digest, date(2026, 1, 1))
    store.put_bytes(b"aside")
    store.delete_all([digest], set_aside=False)
    assert (store.has(digest), len(list(store.set_aside.names()))) == (False, 1)
    store.delete_all([digest])
    assert list(store.set_aside.names()) == []
