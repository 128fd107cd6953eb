"""The folder that blobs lie in: whether it is there, is the one it was, and can be written.

What goes wrong with it is no request's fault: it is told as Unavailable, logged once when it begins and once when it
is over, and what the store says to whoever asks whether it works. Nothing needs to be done when it is back.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from registry.errors import Unavailable
from registry.files import sync_directory
from registry.spec import StoreMark

INCOMING, ASIDE, MARK = "incoming", "set-aside", "store.json"
PROBE = 4096
"""Bytes that are written to see whether anything can be."""

log = logging.getLogger("soup.blobs")


@dataclass(frozen=True)
class Trouble:
    """What is wrong with the folder, in some words and in a sentence that says what to do."""

    what: str
    message: str


GONE = Trouble(
    "is gone", "The folder of the blobs is gone: mount it or put it back; the server then goes on by itself."
)
ANOTHER = Trouble(
    "is another one",
    f"The folder of the blobs is not the one that the server was started with (its {MARK} is missing or another's): "
    "mount it or put it back, and the server goes on by itself; restart the server where it is the right one.",
)
FULL = Trouble(
    "is full",
    "The folder of the blobs is full ({}); nothing of this was stored. Try again when there is space.",
)
READ_ONLY = Trouble(
    "is read-only",
    "The folder of the blobs is read-only ({}); nothing of this was stored. Make its file system writable again.",
)
FORBIDDEN = Trouble(
    "may not be used",
    "The folder of the blobs may not be used by the server ({}): give it back to the server's user.",
)
FAILING = Trouble("fails", "The folder of the blobs cannot be used ({}): look at its disk or its network.")
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
    """What a folder says of whose it is, None without a mark; raises OSError, or ValidationError for another's file."""
    try:
        return StoreMark.model_validate_json((folder / MARK).read_bytes())
    except FileNotFoundError:
        return None


def sync_place(path: Path) -> None:
    """Make the name of a blob durable: its folder, and that folder's own name."""
    sync_directory(path.parent)
    sync_directory(path.parent.parent)


def place_in(folder: Path, name: str) -> Path:
    """The file of a blob by its 64 hex digits, stored or not."""
    return folder / name[:2] / name


class BlobFolder:
    """The state of a folder, which threads share. `store` is whose it has to be by its mark: the first one's found."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.incoming = path / INCOMING
        self.store: str | None = None
        self.trouble: Trouble | None = None
        """What was wrong when it was last used or looked at."""
        self._needed = 0
        """Bytes that there was no room for."""
        self._lock = threading.Lock()

    def look(self) -> Trouble | None:
        """What is wrong with it now; it is seen whether something can be written."""
        try:
            self.check()
            with self.writing(0):
                self._probe()
        except Unavailable:
            return self.trouble
        self._is_well(max(PROBE, self._needed))
        return None

    def check(self) -> None:
        """Raises Unavailable where the folder is gone, or is another one."""
        try:
            found = self._absent()
        except OSError as error:
            raise self._told(error, 0) from error
        if found is not None:
            raise self._remembered(found, found.message)

    @contextmanager
    def writing(self, size: int) -> Iterator[None]:
        """While open, raise Unavailable where the system refuses something, for `size` bytes in all."""
        try:
            yield
        except OSError as error:
            self.check()
            raise self._told(error, size) from error

    def wrote(self, size: int) -> None:
        """So many bytes were stored: whatever was wrong is over, unless there was no room for more."""
        if self.trouble is not None:
            self._is_well(size)

    def _absent(self) -> Trouble | None:
        if not self.path.is_dir():
            return GONE
        try:
            mark = read_mark(self.path)
        except ValidationError:
            return ANOTHER
        if self.store is None and mark is not None:
            self.store = mark.store
        if self.store is None:  # a store of a test, or of a process that starts
            return None if self.incoming.is_dir() else GONE
        return None if mark is not None and mark.store == self.store else ANOTHER

    def _probe(self) -> None:
        """Write a file, and see that there is room for what was last refused; raises OSError."""
        self.incoming.mkdir(exist_ok=True)
        path = self.incoming / secrets.token_hex(16)
        try:
            with path.open("xb") as file:
                file.write(b"\0" * PROBE)
            free = os.statvfs(self.incoming)
            if free.f_bavail * free.f_frsize < self._needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            path.unlink(missing_ok=True)

    def _told(self, error: OSError, size: int) -> Unavailable:
        found = BY_ERROR.get(error.errno or 0, FAILING)
        if found is FULL:
            with self._lock:
                self._needed = max(self._needed, size)
        return self._remembered(found, found.message.format(error.strerror))

    def _remembered(self, found: Trouble, message: str) -> Unavailable:
        with self._lock:
            if self.trouble is not found:
                self.trouble = found
                log.warning("the folder of the blobs %s %s: %s", self.path, found.what, message)
        return Unavailable(message)

    def _is_well(self, size: int) -> None:
        with self._lock:
            if self.trouble is None or (self.trouble is FULL and size < self._needed):
                return
            self.trouble, self._needed = None, 0
            log.info("the folder of the blobs %s can be used again", self.path)
