"""Which files of blobs were read and found to hold what their digest says.

Kept by a store, so that it hashes each file once, and again only when that is another file by its inode, size or times.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, Self

MOST = 2**16
"""Files that are remembered, least recently asked for dropped: some 20 MiB."""
TURNS = 64


class Stamp(NamedTuple):
    """What tells a file from the same one after a change."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, file: BinaryIO) -> Self:
        """The stamp of an open file."""
        found = os.fstat(file.fileno())
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Verified:
    """Stamps of verified files by digest; threads share it."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._stamps: OrderedDict[str, Stamp] = OrderedDict()
        self._lock = threading.Lock()
        self._turns = tuple(threading.Lock() for _ in range(TURNS))

    def turn(self, digest: str) -> AbstractContextManager[bool]:
        """The turn to hash a blob: of several that want it at once one does."""
        return self._turns[int(digest[-2:], 16) % TURNS]

    def knows(self, digest: str, stamp: Stamp) -> bool:
        """Whether the file with this stamp was verified."""
        with self._lock:
            known = self._stamps.get(digest) == stamp
            if known:
                self._stamps.move_to_end(digest)
            return known

    def note(self, digest: str, stamp: Stamp) -> None:
        """The file with this stamp holds what the digest says."""
        with self._lock:
            self._stamps[digest] = stamp
            self._stamps.move_to_end(digest)
            if len(self._stamps) > self._most:
                self._stamps.popitem(last=False)

    def forget(self, digest: str) -> None:
        """The blob is stored no more."""
        with self._lock:
            self._stamps.pop(digest, None)
