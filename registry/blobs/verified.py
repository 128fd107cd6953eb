"""Memory of blob files and objects whose hash was verified.

A store hashes each file once, and again only if its inode, size or times have changed.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import IO, Any, Generic, NamedTuple, Self, TypeVar

MAX_STAMPS = 2**16
"""Stamps that are remembered, the oldest dropped: some 20 MiB."""
LOCKS = 64
Stamp = TypeVar("Stamp", bound=tuple[Any, ...])


class FileStamp(NamedTuple):
    """Inode, size and times of a file, which tell it from another file and from itself after a change."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, file: IO[bytes]) -> Self:
        """The stamp of an open file."""
        stat = os.fstat(file.fileno())
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


class VerifiedBlobs(Generic[Stamp]):
    """Stamps of verified files or objects by digest; threads share it."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp] = {}
        self._lock = threading.Lock()
        self._locks = tuple(threading.Lock() for _ in range(LOCKS))

    def lock(self, digest: str) -> AbstractContextManager[bool]:
        """A lock for hashing a blob, so that of several threads one does; other blobs may share it."""
        return self._locks[int(digest[-2:], 16) % LOCKS]

    def has(self, digest: str, stamp: Stamp) -> bool:
        """Return True if what has this stamp was verified for the digest."""
        return self._stamps.get(digest) == stamp

    def add(self, digest: str, stamp: Stamp) -> None:
        """Record that what has this stamp has the digest."""
        with self._lock:
            self._stamps[digest] = stamp
            if len(self._stamps) > MAX_STAMPS:
                del self._stamps[next(iter(self._stamps))]

    def remove(self, digest: str) -> None:
        """Forget the stamp of a digest."""
        with self._lock:
            self._stamps.pop(digest, None)
