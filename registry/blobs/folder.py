"""The folder of the blobs, and its state: present, the same as at the start, writable.

A fault of the folder is raised as Unavailable, logged when it begins and when it is over, and reported by the store's
`probe`. When the folder is available again, the store continues.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from registry.blobs.state import Fault, StoreState
from registry.errors import Unavailable
from registry.files import sync_directory
from registry.spec import StoreMark

INCOMING, ASIDE, MARK = "incoming", "set-aside", "store.json"
PROBE_BYTES = 2**20
"""Size of the file that a probe writes: a disk without room for it is full."""


GONE = Fault("is gone", "The folder of the blobs is gone: mount it or put it back; the server then goes on by itself.")
REPLACED = Fault(
    "is another one",
    f"The folder of the blobs is not the one that the server was started with (its {MARK} is missing or another's): "
    "mount it or put it back, and the server goes on by itself; restart the server where it is the right one.",
)
FULL = Fault(
    "is full",
    "The folder of the blobs is full ({}); nothing of this was stored. Try again when there is space.",
)
READ_ONLY = Fault(
    "is read-only",
    "The folder of the blobs is read-only ({}); nothing of this was stored. Make its file system writable again.",
)
FORBIDDEN = Fault(
    "may not be used",
    "The folder of the blobs may not be used by the server ({}): give it back to the server's user.",
)
FAILING = Fault("fails", "The folder of the blobs cannot be used ({}): look at its disk or its network.")
BY_ERROR = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EROFS: READ_ONLY,
    errno.EACCES: FORBIDDEN,
    errno.EPERM: FORBIDDEN,
    errno.ENOENT: GONE,
    errno.ENOTDIR: GONE,
}


def read_mark(folder: Path) -> StoreMark | None:
    """The mark of a folder, None without one; raises OSError, or ValidationError for another file of that name."""
    try:
        return StoreMark.model_validate_json((folder / MARK).read_bytes())
    except FileNotFoundError:
        return None


def sync_blob_name(path: Path) -> None:
    """Sync the folder of a blob and the folder above it, so that the blob's name is durable."""
    sync_directory(path.parent)
    sync_directory(path.parent.parent)


def blob_path(folder: Path, name: str) -> Path:
    """The path of a blob's file by its 64 hex digits; it need not exist."""
    return folder / name[:2] / name


class BlobFolder(StoreState):
    """The state of the folder of the blobs; threads share it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"the folder of the blobs {path}")
        self.path = path
        self.incoming = path / INCOMING

    def probe(self) -> Fault | None:
        """Write and delete a file; returns the fault of the folder, None if it can be used."""
        try:
            self.check()
            with self.writing():
                self._probe()
        except Unavailable:
            return self.fault
        self.clear_fault()
        return None

    def check(self) -> None:
        """Raise Unavailable if the folder is gone, or is another one."""
        try:
            fault = self._find_fault()
        except OSError as error:
            raise self._translate(error) from error
        if fault is not None:
            raise self._fail(fault, fault.message)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Translate an OSError while writing to Unavailable."""
        try:
            yield
        except OSError as error:
            self.check()
            raise self._translate(error) from error

    @property
    def new_mode(self) -> int:
        """The mode of new folders: closed to other users, open to a group that may write to this folder."""
        is_shared = self.path.exists() and self.path.stat().st_mode & stat.S_IWGRP
        return 0o770 if is_shared else 0o700

    @property
    def new_file_mode(self) -> int:
        """The mode of new files."""
        return self.new_mode & 0o666

    def make_folder(self, path: Path) -> None:
        """Create this folder or one in it, unless it exists; raises OSError."""
        path.mkdir(exist_ok=True, mode=self.new_mode)

    def create_file(self, path: Path) -> int:
        """Create a file in this folder, and return its descriptor to write to; raises OSError."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.new_file_mode)

    def _find_fault(self) -> Fault | None:
        if not self.path.is_dir():
            return GONE
        try:
            mark = read_mark(self.path)
        except ValidationError:
            return REPLACED
        if not self.matches(mark):
            return REPLACED
        if mark is None and not self.incoming.is_dir():  # in tests, and while a process starts
            return GONE
        return None

    def _probe(self) -> None:
        """Write a file, and delete it; raises OSError."""
        self.make_folder(self.incoming)
        path = self.incoming / secrets.token_hex(16)
        try:
            with os.fdopen(self.create_file(path), "wb") as file:
                file.write(b"\0" * PROBE_BYTES)
        finally:
            path.unlink(missing_ok=True)

    def _translate(self, error: OSError) -> Unavailable:
        fault = BY_ERROR.get(error.errno or 0, FAILING)
        return self._fail(fault, fault.message.format(error.strerror))

    def _fail(self, fault: Fault, message: str) -> Unavailable:
        """Record a fault, and return the error to raise."""
        self.record_fault(fault, f"{fault.summary}: {message}")
        return Unavailable(message)
