"""Files that grow part by part until they are whole and become blobs: `<folder>/uploads/<id>`; none is a stored blob.

Whoever writes to one holds the operating system's lock on it, so that parts never mix, in whatever process. What was
kept is synced. The hash goes along with what this process writes; where it did not see all of a file, the file is read
once at its end.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, Self

from registry.blobs.contract import ServerBlobs, hex_of
from registry.blobs.folder import sync_place
from registry.blobs.verified import Stamp
from registry.errors import Conflict, DigestMismatch, Internal
from registry.spec import UploadPart

UPLOADS = "uploads"
MOST_HASHES = 1024
"""Files whose hash so far is remembered, some 300 bytes each; others are read once more at their end."""


class Unfinished:
    """An UploadStore over the files of a folder of blobs that are not whole yet."""

    def __init__(self, blobs: ServerBlobs) -> None:
        self.blobs = blobs
        self.folder = blobs.folder / UPLOADS
        self.hashes = _Hashes()

    def size(self, id: str) -> int:
        """The bytes that there are, 0 where there is no file; raises Unavailable where the folder cannot be used."""
        try:
            return (self.folder / id).stat().st_size
        except OSError as error:
            self.blobs.state.check()
            if isinstance(error, FileNotFoundError):
                return 0
            with self.blobs.state.writing(0):
                raise

    def held(self, id: str, received: int, parts: Sequence[UploadPart]) -> int:  # noqa: ARG002 - a file has none
        """The acknowledged bytes that there are; an older copy of the disk or the database knows less."""
        return min(received, self.size(id))

    def open(self, id: str) -> UnfinishedFile:
        """The file to write to, made if need be; entering raises Conflict where somebody else writes to it now."""
        return UnfinishedFile(self, id)

    def is_held(self, id: str) -> bool:
        """Whether somebody writes to the file now."""
        try:
            with (self.folder / id).open("rb") as file:
                _hold(file)
        except Conflict:
            return True
        except OSError:
            return False
        return False

    def remove(self, id: str) -> bool:
        """Remove a file; False where somebody writes to it now, or it cannot be removed."""
        path = self.folder / id
        try:
            with path.open("rb") as file:
                _hold(file)
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        except (Conflict, OSError):
            return False
        self.hashes.forget(id)
        return True

    def older_than(self, moment: float) -> Iterator[str]:
        """The files that were last written before a moment, in seconds since 1970."""
        for path in self.folder.glob("upload-*"):
            with suppress(FileNotFoundError):  # finished meanwhile
                if path.stat().st_mtime < moment:
                    yield path.name


class UnfinishedFile(AbstractContextManager["UnfinishedFile"]):
    """A file that is held for one part: `begin`, `write`, then `keep` or `store`; what is not kept is cut off again."""

    def __init__(self, files: Unfinished, id: str) -> None:
        self._files = files
        self._blobs = files.blobs
        self._id = id
        self._path = files.folder / id
        self._file: FileIO | None = None
        self._sha: Any = None
        self._kept = 0
        self._kept_sha: Any = None
        self.end = 0
        """Bytes, with those of this part so far."""

    def __enter__(self) -> Self:
        """Open the file and hold it: a sweep may take it between the two, then there is a next."""
        while True:
            self._blobs.state.check()
            file = self._opened()
            try:
                _hold(file)
            except BaseException:
                file.close()
                raise
            if _is_at(self._path, file) and not self._parted(file):
                self._file = file
                self.end = self._kept = Stamp.of(file).size
                return self
            file.close()

    def _parted(self, file: FileIO) -> bool:
        """Put a copy in the place of a file that is a blob as well, as a crash may leave it; whether that was so."""
        if os.fstat(file.fileno()).st_nlink == 1:
            return False
        copy = self._blobs.state.incoming / secrets.token_hex(16)
        with self._blobs.state.writing(Stamp.of(file).size), copy.open("xb") as target:
            with suppress(OSError):
                fcntl.flock(target, fcntl.LOCK_EX)  # else a server that starts sweeps it
            shutil.copyfileobj(file, target)
            target.flush()
            os.fsync(target.fileno())
            copy.replace(self._path)
            sync_place(self._path)
        return True

    def _opened(self) -> FileIO:
        with self._blobs.state.writing(0):
            self._files.folder.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):
                return self._path.open("r+b", buffering=0)
            with suppress(FileExistsError):  # another was quicker to make it
                made = self._path.open("xb", buffering=0)
                sync_place(self._path)
                return made
            return self._path.open("r+b", buffering=0)

    def begin(self, offset: int, parts: Sequence[UploadPart] = ()) -> None:  # noqa: ARG002 - a file has none
        """Write from here on; what lies beyond was never kept. There must be as many bytes as that."""
        file = self._held()
        self._sha = hashlib.sha256() if offset == 0 else self._files.hashes.of(self._id, Stamp.of(file), offset)
        self._kept_sha = None if self._sha is None else self._sha.copy()
        with self._blobs.state.writing(0):
            if self.end > offset:
                file.truncate(offset)
                self._note()
            file.seek(offset)
        self.end = self._kept = offset

    def write(self, chunk: bytes) -> None:
        """Append."""
        file, left = self._held(), memoryview(chunk)
        with self._blobs.state.writing(self.end + len(chunk)):
            while left:
                left = left[file.write(left) :]
        if self._sha is not None:
            self._sha.update(chunk)
        self.end += len(chunk)

    def keep(self) -> UploadPart | None:
        """Make what was written durable; a file needs nothing else that names it."""
        file = self._held()
        with self._blobs.state.writing(self.end):
            os.fsync(file.fileno())
        self._kept, self._kept_sha = self.end, None if self._sha is None else self._sha.copy()
        self._note()
        return None

    def store(self, digest: str) -> None:
        """Make all of it the blob with this digest, which is then visible and durable; raises DigestMismatch.

        The file stays until `finish`, as another name of the same bytes, and nothing is added to it any more.
        """
        file = self._held()
        found = (self._sha or self._read()).hexdigest()
        if found != hex_of(digest):
            raise DigestMismatch(
                f"The {self.end} bytes have digest sha256:{found}, not the one they were sent under.", param="digest"
            )
        linked = self._blobs.state.incoming / secrets.token_hex(16)
        try:
            os.link(self._path, linked)
        except OSError:  # a file system without links: what a crash leaves is the blob alone, and is sent again
            self._blobs.take_in(file, self._path, digest, size=self.end)
            return
        try:
            self._blobs.take_in(file, linked, digest, size=self.end)
        finally:
            with suppress(OSError):
                linked.unlink(missing_ok=True)

    def withdraw(self, part: UploadPart) -> None:
        """Nothing: a file is held by one, and has no parts."""

    def finish(self) -> None:
        """Remove the file, once what was stored of it has a row: until then an upload that a crash cut off needs it."""
        with suppress(OSError):  # the sweep does
            self._path.unlink(missing_ok=True)
        self._files.hashes.forget(self._id)

    def discard(self) -> None:
        """Remove the file: what is held of it is of no use to anybody."""
        with self._blobs.state.writing(0):
            self._path.unlink(missing_ok=True)
        self._held().close()
        self._files.hashes.forget(self._id)

    def __exit__(self, *_: object) -> None:
        """Cut off what was not kept, and let go."""
        file = self._held_at_all()
        with suppress(OSError):  # it is cut off before the next part
            if not file.closed and self.end > self._kept:
                file.truncate(self._kept)
                self._note()
        file.close()

    def _note(self) -> None:
        """Remember the hash of what is kept, of the file as it is now."""
        if self._kept_sha is not None:
            self._files.hashes.note(self._id, Stamp.of(self._held()), self._kept_sha.copy())

    def _read(self) -> Any:
        with self._blobs.state.writing(0), self._path.open("rb") as file:
            return hashlib.file_digest(file, "sha256")

    def _held_at_all(self) -> FileIO:
        if self._file is None:
            raise Internal("an unfinished file is used inside 'with'")
        return self._file

    def _held(self) -> FileIO:
        file = self._held_at_all()
        if file.closed:
            raise Internal("an unfinished file is not written after it was stored")
        return file


class _Hashes:
    """The hash of files as this process left them; one that anybody else changed since is another by its stamp."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, tuple[Stamp, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, id: str, stamp: Stamp, offset: int) -> Any:
        """A hash of the first `offset` bytes to go on with, None where it is not known."""
        with self._lock:
            known = self._found.get(id)
        return known[1].copy() if known is not None and known[0] == stamp and stamp.size == offset else None

    def note(self, id: str, stamp: Stamp, sha: Any) -> None:
        """The file is as this process left it, with this hash."""
        with self._lock:
            self._found[id] = (stamp, sha)
            self._found.move_to_end(id)
            if len(self._found) > MOST_HASHES:
                self._found.popitem(last=False)

    def forget(self, id: str) -> None:
        """The file is no more."""
        with self._lock:
            self._found.pop(id, None)


def _hold(file: IO[bytes]) -> None:
    """Hold a file as long as it is open; raises Conflict where somebody else does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict("Another request is writing to this upload.") from None
    except OSError:  # a file system without locks
        return


def _is_at(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
