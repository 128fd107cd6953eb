"""Memory of blob files whose hash was verified.

A store hashes each file once, and again only if its inode, size or times have changed.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Self

MAX_FILES = 2**16
"""Files that are remembered, the least recently used dropped: some 20 MiB."""
LOCKS = 64


class FileStamp(NamedTuple):
    """Inode, size and times of a file, which tell it from another file and from itself after a change."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, file: BinaryIO) -> Self:
        """The stamp of an open file."""
        stat = os.fstat(file.fileno())
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


class VerifiedFiles:
    """Stamps of verified files by digest; threads share it."""

    def __init__(self, max_files: int = MAX_FILES) -> None:
        self._max_files = max_files
        self._stamps: OrderedDict[str, FileStamp] = OrderedDict()
        self._lock = threading.Lock()
        self._locks = tuple(threading.Lock() for _ in range(LOCKS))

    def lock(self, digest: str) -> AbstractContextManager[bool]:
        """A lock for hashing a blob, so that of several threads one does; other blobs may share it."""
        return self._locks[int(digest[-2:], 16) % LOCKS]

    def has(self, digest: str, stamp: FileStamp) -> bool:
        """Return True if the file with this stamp was verified for the digest."""
        with self._lock:
            is_verified = self._stamps.get(digest) == stamp
            if is_verified:
                self._stamps.move_to_end(digest)
            return is_verified

    def add(self, digest: str, stamp: FileStamp) -> None:
        """Record that the file with this stamp has the digest."""
        with self._lock:
            self._stamps[digest] = stamp
            self._stamps.move_to_end(digest)
            if len(self._stamps) > self._max_files:
                self._stamps.popitem(last=False)

    def remove(self, digest: str) -> None:
        """Forget the file of a digest."""
        with self._lock:
            self._stamps.pop(digest, None)
