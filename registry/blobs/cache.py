"""Least-recently-used cache of blob files on this machine, for blobs in an object store.

Any file, or the whole folder, may be deleted at any time, and is fetched again. A file is read only after this process
has hashed it, and hashed again if it has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from registry.blobs.contract import hex_of
from registry.blobs.verified import FileStamp, VerifiedFiles
from registry.errors import Unavailable

PARTIAL = ".part"
"""Suffix of a file that is being fetched."""
ABANDONED_SECONDS = 24 * 3600.0
"""Age at which such a file is taken for one that a crash left."""
SCANS = 8
"""Scans of the folder while `max_bytes` are fetched."""


class BlobCache:
    """Verified files of blobs in a folder of at most `max_bytes`; threads and processes share it.

    Each process tracks the files it has seen and fetched. It scans the folder at first, and again whenever it has
    fetched an eighth of `max_bytes`, so each further process may exceed the limit by that much.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._verified = VerifiedFiles()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """Bytes of the tracked files by name, in the order of this process's last use."""
        self._total = 0
        """Bytes of all tracked files."""
        self._fetched: int | None = None
        """Bytes fetched since the last scan, None before the first."""
        self._lock = threading.Lock()

    def lock(self, digest: str) -> AbstractContextManager[bool]:
        """A lock for fetching a blob, so that of several threads one does."""
        return self._verified.lock(digest)

    def open(self, digest: str) -> BinaryIO | None:
        """The verified file of a blob, None if it is not cached; a file with other bytes is removed."""
        name = hex_of(digest)
        try:
            file = (self.folder / name).open("rb")
        except OSError:
            with self._lock:
                self._drop(name)
            return None
        stamp = FileStamp.of(file)
        if not self._verified.has(digest, stamp):
            try:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                file.seek(0)
            except OSError:
                sha256 = ""
            if sha256 != name:
                file.close()
                self.remove(digest)
                return None
            self._verified.add(digest, stamp)
        with self._lock:
            self._note(name, stamp.size)
        return file

    @contextmanager
    def temporary_file(self, digest: str) -> Iterator[tuple[Path, BinaryIO]]:
        """A new file in the folder to write a blob to; it is deleted at the end, unless it was kept."""
        path = self.folder / f"{hex_of(digest)}.{secrets.token_hex(8)}{PARTIAL}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("x+b") as file:
                yield path, file
        except OSError as error:
            raise Unavailable(
                f"The server's cache of blobs cannot be written ({error.strerror}): check that its disk has room.",
                param="blobs",
            ) from error
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def keep(self, path: Path, digest: str) -> BinaryIO | None:
        """Move a file into the cache whose bytes are known to be the digest's, and open it; None if that fails."""
        name = hex_of(digest)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = path.open("rb")  # before it is renamed: that name may be another process's file
        except OSError:  # the folder was deleted a moment ago
            return None
        try:
            path.replace(self.folder / name)
        except OSError:  # another file system
            file.close()
            return None
        stamp = FileStamp.of(file)  # after the rename, which counts as a change of the file on some systems
        self._verified.add(digest, stamp)
        with self._lock:
            self._note(name, stamp.size)
            if self._fetched is not None:
                self._fetched += stamp.size
            if self._fetched is None or self._total > self._max_bytes:
                self._evict()
        return file

    def remove(self, digest: str) -> None:
        """Remove the file of a blob."""
        with suppress(OSError):
            (self.folder / hex_of(digest)).unlink(missing_ok=True)
        with self._lock:
            self._drop(hex_of(digest))
        self._verified.remove(digest)

    def _note(self, name: str, size: int) -> None:
        """Track a file that is used now."""
        self._total += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        self._sizes.move_to_end(name)

    def _drop(self, name: str) -> None:
        """Track a file no longer."""
        self._total -= self._sizes.pop(name, 0)

    def _evict(self) -> None:
        """Delete the least recently used files until the rest fits; open files remain readable."""
        if self._fetched is None or self._fetched > self._max_bytes // SCANS:
            self._scan()
        while self._total > self._max_bytes and self._sizes:
            name, size = self._sizes.popitem(last=False)
            self._total -= size
            with suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)

    def _scan(self) -> None:
        """Track all files of the folder, those first that this process never used, by age; remove abandoned ones."""
        stats: dict[str, os.stat_result] = {}
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    stats[entry.name] = entry.stat(follow_symlinks=False)
        blobs = {name: stat for name, stat in stats.items() if re.fullmatch("[0-9a-f]{64}", name)}
        rank = {name: number for number, name in enumerate(self._sizes)}
        order = sorted(blobs, key=lambda name: (name in rank, rank.get(name, 0), blobs[name].st_mtime))
        self._sizes = OrderedDict((name, blobs[name].st_size) for name in order)
        self._total, self._fetched = sum(self._sizes.values()), 0
        newest = max((stat.st_mtime for stat in stats.values()), default=0.0)
        for name, stat in stats.items():
            if name.endswith(PARTIAL) and stat.st_mtime < newest - ABANDONED_SECONDS:
                with suppress(OSError):
                    (self.folder / name).unlink(missing_ok=True)
