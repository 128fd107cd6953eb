"""Unfinished uploads as files that grow part by part, `<folder>/uploads/<id>`, until they are copied into blobs.

A writer holds the operating system's lock on the file, so that parts of several processes never mix. Kept parts are
synced.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Self

from registry.blobs.contract import AcknowledgedUpload, ServerBlobs, writable
from registry.blobs.folder import sync_blob_name
from registry.errors import Conflict
from registry.files import chunks_of
from registry.spec import UploadPart

UPLOADS = "uploads"


class FileUploads:
    """An UploadStore over files in the folder of the blobs."""

    def __init__(self, blobs: ServerBlobs) -> None:
        self.blobs = blobs
        self.folder = blobs.folder / UPLOADS

    def size(self, id: str) -> int:
        """The size of an upload's file, 0 if there is none; raises Unavailable if the folder cannot be used."""
        try:
            return (self.folder / id).stat().st_size
        except OSError as error:
            self.blobs.state.check()
            if isinstance(error, FileNotFoundError):
                return 0
            with self.blobs.state.writing():
                raise

    def durable_bytes(self, upload: AcknowledgedUpload) -> int:
        """The number of acknowledged bytes in the file; fewer if the disk or the database is an older copy."""
        return min(upload.received, self.size(upload.id))

    def open(self, id: str) -> FileUpload:
        """The upload to write to, created if necessary; entering raises Conflict if another writer has it locked."""
        return FileUpload(self, id)

    def remove(self, id: str) -> bool:
        """Delete the file of an upload; returns False if it is locked, or cannot be deleted."""
        path = self.folder / id
        try:
            with path.open("r+b") as file:  # NFS locks only files that are open for writing
                _lock(file)
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        except (Conflict, OSError):
            return False
        return True

    def older_than(self, moment: float) -> Iterator[str]:
        """Ids of uploads whose file was last written before a moment, in seconds since 1970."""
        for path in self.folder.glob("upload-*"):
            with suppress(FileNotFoundError):  # finished meanwhile
                if path.stat().st_mtime < moment:
                    yield path.name


class FileUpload(AbstractContextManager["FileUpload"]):
    """An OpenUpload over a file, which is locked for one part and truncated to what was kept."""

    def __init__(self, uploads: FileUploads, id: str) -> None:
        self._uploads = uploads
        self._blobs = uploads.blobs
        self._path = uploads.folder / id
        self._file: FileIO | None = None
        self._kept_end = 0
        self.end = 0
        """Size of the file with the bytes written so far."""

    def __enter__(self) -> Self:
        """Open and lock the file; repeated if a sweep removes it in between."""
        while True:
            self._blobs.state.check()
            file = self._open()
            try:
                _lock(file)
            except BaseException:
                file.close()
                raise
            if _is_at(self._path, file):
                self._file = file
                self.end = self._kept_end = os.fstat(file.fileno()).st_size
                return self
            file.close()

    def _open(self) -> FileIO:
        with self._blobs.state.writing():
            self._blobs.state.make_folder(self._uploads.folder)
            with suppress(FileNotFoundError):
                return self._path.open("r+b", buffering=0)
            with suppress(FileExistsError):  # another process was faster
                created = os.fdopen(self._blobs.state.create_file(self._path), "wb", buffering=0)
                sync_blob_name(self._path)
                return created
            return self._path.open("r+b", buffering=0)

    def begin(self, upload: AcknowledgedUpload) -> None:
        """Write after the acknowledged bytes, which the file has to hold; unacknowledged ones are cut off."""
        file, offset = self._writable_file(), upload.received
        with self._blobs.state.writing():
            if self.end > offset:
                file.truncate(offset)
            file.seek(offset)
        self.end = self._kept_end = offset

    def write(self, chunk: bytes) -> None:
        """Append; raises Unavailable if the disk is full."""
        file, unwritten = self._writable_file(), memoryview(chunk)
        with self._blobs.state.writing():
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
        self.end += len(chunk)

    def keep(self) -> UploadPart | None:
        """Make the written bytes durable; returns None, since the database has no more to record than their number."""
        file = self._writable_file()
        with self._blobs.state.writing():
            os.fsync(file.fileno())
        self._kept_end = self.end
        return None

    def chunks(self) -> Iterator[bytes]:
        """All bytes of the file; raises Unavailable."""
        with self._blobs.state.writing(), self._path.open("rb") as written:
            yield from chunks_of(written)

    def remove(self) -> None:
        """Delete the file."""
        with suppress(OSError):  # a sweep deletes it later
            self._path.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        """Cut off what was not kept, and unlock the file."""
        file = self._writable_file()
        with suppress(OSError):  # else it is cut off before the next part
            if self.end > self._kept_end:
                file.truncate(self._kept_end)
        file.close()

    def _writable_file(self) -> FileIO:
        return writable(self._file, "an unfinished file is written inside 'with'")


def _lock(file: IO[bytes]) -> None:
    """Lock a file until it is closed; raises Conflict if another writer has it locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict("Another request is writing to this upload.") from None
    except OSError:  # a file system without locks
        return


def _is_at(path: Path, file: FileIO) -> bool:
    """Return True if `path` is still the path of an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
