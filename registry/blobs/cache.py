"""Files of blobs that an object store holds, kept on this machine up to so many bytes, least recently used dropped.

Nothing here is needed: a file, or the whole folder, may be deleted at any time, and is fetched again. A file is read
only after its bytes were hashed by this process, and once more where it has become another file.
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
from registry.blobs.verified import Stamp, Verified
from registry.errors import Unavailable

PARTIAL = ".part"
"""How the name of a file ends that is being fetched."""
OLD = 24 * 3600.0
"""Seconds after which such a file is taken for what a crash left."""


LOOKS = 8
"""Looks at the folder while as many bytes are fetched as it may hold."""


class BlobCache:
    """Verified files of blobs in a folder of its own, made when it is needed; threads and processes share it.

    Each process knows what it saw and fetched. It looks at the folder at first, and again once it has fetched an eighth
    of `most`: so much more than `most` may be there for each other process.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder = folder
        self._most = most
        self._verified = Verified()
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """The files that there are, as far as is known, and their bytes, by this process's last use of them."""
        self._held = 0
        """The sum of those bytes."""
        self._since: int | None = None
        """Bytes that were fetched since somebody looked, None where nobody did."""
        self._lock = threading.Lock()

    def turn(self, digest: str) -> AbstractContextManager[bool]:
        """The turn to fetch a blob: of several that want it at once one does."""
        return self._verified.turn(digest)

    def open(self, digest: str) -> BinaryIO | None:
        """The file of a blob, verified; None where it is not here. One that holds other bytes is removed."""
        name = hex_of(digest)
        try:
            file = (self.folder / name).open("rb")
        except OSError:
            with self._lock:
                self._drop(name)
            return None
        stamp = Stamp.of(file)
        if not self._verified.knows(digest, stamp):
            try:
                found = hashlib.file_digest(file, "sha256").hexdigest()
                file.seek(0)
            except OSError:
                found = ""
            if found != name:
                file.close()
                self.remove(digest)
                return None
            self._verified.note(digest, stamp)
        with self._lock:
            self._note(name, stamp.size)
        return file

    @contextmanager
    def fetching(self, digest: str) -> Iterator[tuple[Path, BinaryIO]]:
        """A new file beside the others to write a blob to; it is gone at the end, unless it was kept."""
        path = self.folder / f"{hex_of(digest)}.{secrets.token_hex(8)}{PARTIAL}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("x+b") as file:
                yield path, file
        except OSError as error:
            raise Unavailable(
                f"The cache of blobs on this server cannot be written ({error.strerror}): see that there is room.",
                param="blobs",
            ) from error
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def keep(self, path: Path, digest: str) -> BinaryIO | None:
        """Take a file in whose bytes were just found to be the digest's, and open it; None where that cannot be."""
        name = hex_of(digest)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = path.open("rb")  # before it has its name: by that another process's may be opened
        except OSError:  # the folder was deleted a moment ago
            return None
        try:
            path.replace(self.folder / name)
        except OSError:  # another file system
            file.close()
            return None
        stamp = Stamp.of(file)  # after the rename, which is a change of the file to some systems
        self._verified.note(digest, stamp)
        with self._lock:
            self._note(name, stamp.size)
            if self._since is not None:
                self._since += stamp.size
            if self._since is None or self._held > self._most:
                self._make_room()
        return file

    def remove(self, digest: str) -> None:
        """Drop a file."""
        with suppress(OSError):
            (self.folder / hex_of(digest)).unlink(missing_ok=True)
        with self._lock:
            self._drop(hex_of(digest))
        self._verified.forget(digest)

    def _note(self, name: str, size: int) -> None:
        """A file is there and was used now."""
        self._held += size - self._sizes.get(name, 0)
        self._sizes[name] = size
        self._sizes.move_to_end(name)

    def _drop(self, name: str) -> None:
        """A file is not there any more."""
        self._held -= self._sizes.pop(name, 0)

    def _make_room(self) -> None:
        """Drop the files used least recently until the rest fits; what is open can be read on."""
        if self._since is None or self._since > self._most // LOOKS:
            self._look()
        while self._held > self._most and self._sizes:
            name, size = self._sizes.popitem(last=False)
            self._held -= size
            with suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)

    def _look(self) -> None:
        """See what is there: files that this process never used come first, by age. What a crash left is removed."""
        found: dict[str, os.stat_result] = {}
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    found[entry.name] = entry.stat(follow_symlinks=False)
        whole = {name: stat for name, stat in found.items() if re.fullmatch("[0-9a-f]{64}", name)}
        turn = {name: number for number, name in enumerate(self._sizes)}
        order = sorted(whole, key=lambda one: (one in turn, turn.get(one, 0), whole[one].st_mtime))
        self._sizes = OrderedDict((name, whole[name].st_size) for name in order)
        self._held, self._since = sum(self._sizes.values()), 0
        newest = max((stat.st_mtime for stat in found.values()), default=0.0)
        for name, stat in found.items():
            if name.endswith(PARTIAL) and stat.st_mtime < newest - OLD:
                with suppress(OSError):
                    (self.folder / name).unlink(missing_ok=True)
