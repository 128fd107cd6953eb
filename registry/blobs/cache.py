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
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from registry.blobs.bucket import Bucket, ObjectStamp
from registry.blobs.contract import damaged, hex_of, missing
from registry.blobs.verified import FileStamp, VerifiedBlobs
from registry.errors import Unavailable

PARTIAL = ".part"
"""Suffix of a file that is being fetched."""
ABANDONED_SECONDS = 24 * 3600.0
"""Age at which such a file is taken for one that a crash left."""
MAX_READS = 3
"""Reads of an object before it is called damaged."""
FREED = 8
"""An eviction leaves at least this part of the limit free, so that the folder is scanned rarely."""


class BlobCache:
    """Verified files of blobs in a folder of at most `max_bytes`; threads and processes share it.

    A process scans the folder when what it has fetched may exceed the limit, which each further process may exceed.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._verified = VerifiedBlobs[FileStamp]()
        self._used: dict[str, float] = {}
        """When this process last used a file, by name; others are as old as their last change."""
        self._free = 0
        """Bytes that may be fetched before the folder is scanned."""
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
        self._used[name] = time.time()
        return file

    def fetch(self, bucket: Bucket, digest: str, key: str) -> tuple[BinaryIO, ObjectStamp]:
        """Download the object with this digest; returns its file, and the stamp of the object.

        Raises DamagedBlob if the object is missing, or if the bytes of every read have another digest.
        """
        size = 0
        for attempt in range(MAX_READS):
            if attempt:
                bucket.pause(attempt)
            stamp = bucket.head(key)
            if stamp is None:
                raise missing(digest)
            size = stamp.size
            with self.temporary_file(digest) as (path, file):
                sha256 = hashlib.sha256()
                try:
                    for chunk in bucket.read_chunks(key, size):
                        sha256.update(chunk)
                        file.write(chunk)
                except FileNotFoundError:
                    raise missing(digest) from None
                file.flush()
                if sha256.hexdigest() == hex_of(digest):
                    self.keep(path, file, digest)
                    reader = os.fdopen(os.dup(file.fileno()), "rb")  # also if the folder was deleted meanwhile
                    reader.seek(0)
                    return reader, stamp
        raise damaged(digest, size)

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

    def keep(self, path: Path, file: IO[bytes], digest: str) -> None:
        """Move a file, open as `file`, into the cache if that is possible; its bytes are known to be the digest's."""
        name = hex_of(digest)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.replace(self.folder / name)
        except OSError:  # the folder was deleted a moment ago, or is on another file system
            return
        # after the rename, which counts as a change on some systems; the new name may be another process's file already
        stamp = FileStamp.of(file)
        self._verified.add(digest, stamp)
        self._used[name] = time.time()
        with self._lock:
            self._free -= stamp.size
            if self._free < 0:
                self._evict()

    def remove(self, digest: str) -> None:
        """Remove the file of a blob."""
        with suppress(OSError):
            (self.folder / hex_of(digest)).unlink(missing_ok=True)
        self._verified.remove(digest)

    def _evict(self) -> None:
        """Delete abandoned files, and the least recently used until the rest fits; open files remain readable."""
        stats = {}
        with suppress(OSError):
            for path in self.folder.iterdir():
                with suppress(OSError):
                    stats[path] = path.lstat()
        blobs = [path for path in stats if re.fullmatch("[0-9a-f]{64}", path.name)]
        self._used = {path.name: self._used.get(path.name, stats[path].st_mtime) for path in blobs}
        total = sum(stats[path].st_size for path in blobs)
        abandoned = time.time() - ABANDONED_SECONDS
        deleted = [path for path in stats if path.suffix == PARTIAL and stats[path].st_mtime < abandoned]
        for path in sorted(blobs, key=lambda path: self._used[path.name]):
            if total <= self._max_bytes - self._max_bytes // FREED:
                break
            total -= stats[path].st_size
            deleted.append(path)
        for path in deleted:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self._free = self._max_bytes - total
