"""Blobs as files of a folder, `<first two hex>/<64 hex>`.

A blob is written to a temporary file, synced, renamed, and its folder synced: a crash leaves either the whole blob or a
temporary file, which the next start removes. Several processes may share the folder: a writer holds the operating
system's lock on its temporary file, and only unlocked files are removed. Blobs are verified when they are read, once
for each state of the file (`verified`).
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import IO, BinaryIO, Self

from registry.blobs.contract import ContentCheck, damaged, hex_of, missing, unreadable, writable
from registry.blobs.file_uploads import FileUploads
from registry.blobs.folder import ASIDE, BlobFolder, blob_path, sync_blob_name
from registry.blobs.set_aside import SetAsideFiles
from registry.blobs.verified import FileStamp, VerifiedBlobs
from registry.errors import DamagedBlob, Unavailable
from registry.files import chunks_of, open_regular, sync_directory
from registry.names import sha256_digest

log = logging.getLogger("soup.blobs")
SCRATCH = sha256_digest(b"")
"""The digest that a writer of a scratch file is given."""


class WritableBlobs(ABC):
    """Base of stores whose blobs are written to a file in the folder of `state`, and then adopted."""

    state: BlobFolder

    @abstractmethod
    def open(self, digest: str) -> BinaryIO:
        """Its bytes as a seekable file, all of them verified; raises DamagedBlob."""

    @abstractmethod
    def adopt(self, file: IO[bytes], path: Path, digest: str) -> None:
        """Make the file the blob with this digest; durable when this returns."""

    def put_bytes(self, data: bytes) -> str:
        """Store bytes and return their digest; durable when this returns."""
        digest = sha256_digest(data)
        with self.writer(digest, max_bytes=len(data), length=len(data)) as writer:
            writer.write(data)
            writer.commit()
        return digest

    def writer(self, digest: str, *, max_bytes: int, length: int | None = None) -> LocalWriter:
        """A writer of the blob with this digest."""
        return LocalWriter(self, digest, ContentCheck(digest, max_bytes, length))

    def size(self, digest: str) -> int:
        """Its size in bytes; raises DamagedBlob."""
        with self.open(digest) as file:
            return os.fstat(file.fileno()).st_size


class LocalBlobs(WritableBlobs):
    """A ServerBlobs over a folder, which is created unless `make` is False, for a folder of another process."""

    is_shared = False

    def __init__(self, folder: Path, *, make: bool = True) -> None:
        self.folder = folder
        self.state = BlobFolder(folder)
        self.set_aside = SetAsideFiles(self.state)
        self._verified = VerifiedBlobs[FileStamp]()
        if make:
            self._make()

    def _make(self) -> None:
        """Create the folder, closed to other users, and remove temporary files that crashes left in it."""
        folder, incoming = self.folder, self.state.incoming
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.state.make_folder(folder)
        self.state.make_folder(incoming)
        sync_directory(folder)
        sync_directory(folder.parent)
        for path in incoming.iterdir():
            if re.fullmatch("[0-9a-f]{32}", path.name):  # else a file that is not ours
                _remove_abandoned(path)

    @property
    def location(self) -> str:
        """The path of the folder."""
        return str(self.folder)

    def check(self) -> None:
        """Raise Unavailable if the folder is gone, or is another one."""
        self.state.check()

    def put_bytes(self, data: bytes) -> str:
        """Store bytes and return their digest; durable when this returns."""
        digest = sha256_digest(data)
        if self.is_whole(digest):  # another thread may have renamed it a moment ago, its folder not yet synced
            with self.state.writing():
                sync_blob_name(self.place(digest))
            return digest
        return super().put_bytes(data)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A file beside the blobs that another process may write to; deleted at the end of the context.

        It is locked until then, so that no starting process removes it; after a crash the next start does.
        """
        with LocalWriter(self, SCRATCH, ContentCheck(SCRATCH, 0, None)) as writer:
            yield writer.temporary

    def has(self, digest: str) -> bool:
        """Return True if the blob is stored, verified or not."""
        with self._reading(digest):
            return self.place(digest).is_file()

    def is_whole(self, digest: str) -> bool:
        """Return True if the blob is stored and verified."""
        try:
            self.open(digest).close()
        except DamagedBlob:
            return False
        return True

    def size_unverified(self, digest: str) -> int:
        """Its size in bytes, verified all the same; raises DamagedBlob."""
        return self.size(digest)

    def read(self, digest: str) -> bytes:
        """All its bytes; raises DamagedBlob."""
        with self._reading(digest), self.open(digest) as file:
            return file.read()

    def open(self, digest: str) -> BinaryIO:
        """Its bytes as a seekable file, all of them verified; raises DamagedBlob."""
        with self._reading(digest), ExitStack() as stack:
            file = stack.enter_context(self.place(digest).open("rb"))
            self._verify(digest, file)
            stack.pop_all()
        return file

    def _verify(self, digest: str, file: BufferedReader) -> None:
        """Raise DamagedBlob unless the file has the digest; it is hashed unless it was verified before."""
        stamp = FileStamp.of(file)
        if self._verified.has(digest, stamp):
            return
        with self._verified.lock(digest):
            if self._verified.has(digest, stamp):
                return
            if hashlib.file_digest(file, "sha256").hexdigest() != hex_of(digest):
                raise damaged(digest, stamp.size)
            if FileStamp.of(file) == stamp:
                self._verified.add(digest, stamp)
        file.seek(0)

    def adopt(self, file: IO[bytes], path: Path, digest: str) -> None:
        """Make an open, verified file of this folder the blob: sync it, rename it, and sync its new folder."""
        self.state.check()
        target = self.place(digest)
        repairs = self.has(digest) and not self.is_whole(digest)
        with self.state.writing():
            file.flush()
            os.fsync(file.fileno())
            self.state.make_folder(target.parent)
            path.replace(target)
            file.close()  # after the rename, since it releases the lock
            sync_blob_name(target)
        self.state.clear_fault()
        if repairs:
            log.warning("blob %s was damaged: the right bytes were sent again and have replaced it", digest)

    def delete(self, digest: str) -> None:
        """Delete it, also if it was set aside; durable when this returns."""
        self.delete_all([digest])

    def delete_all(
        self, digests: Sequence[str], *, set_aside: bool = True, confirm: Callable[[], None] | None = None
    ) -> None:
        """Delete each of them, by default also copies that were set aside; durable when this returns."""
        if not digests:
            return
        self.state.check()
        copies = (self.folder.glob(f"{ASIDE}/*/{hex_of(digest)}") for digest in digests if set_aside)
        paths = [*map(self.place, digests), *chain.from_iterable(copies)]
        if confirm is not None:
            confirm()
        with self.state.writing():
            for path in paths:
                path.unlink(missing_ok=True)
            for folder in {path.parent for path in paths}:  # also of files that an interrupted call has deleted
                if folder.exists():
                    sync_directory(folder)
        for digest in digests:
            self._verified.remove(digest)

    def digests(self) -> Iterator[str]:
        """Digests of all stored blobs."""
        for path in self.folder.glob("??/*"):
            if re.fullmatch("[0-9a-f]{64}", path.name):  # else a file that is not ours
                yield "sha256:" + path.name

    def read_prefix(self, digest: str, size: int) -> bytes:
        """The first bytes of a blob, unverified; raises OSError."""
        with self.place(digest).open("rb") as file:
            return file.read(size)

    def stored_size(self, digest: str) -> int:
        """The size of a blob, unverified; raises OSError."""
        return self.place(digest).stat().st_size

    def chunks(self, digest: str, *, fresh: bool = False) -> Iterator[bytes]:
        """All bytes of a blob, unverified; raises OSError, also for a file that is not a regular one."""
        with open_regular(self.place(digest)) as file:
            if fresh:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            yield from chunks_of(file)

    def uploads(self) -> FileUploads:
        """The store of unfinished uploads, as growing files."""
        return FileUploads(self)

    def signed_url(self, digest: str, *, seconds: float) -> str:  # noqa: ARG002
        """Raise Unavailable: a folder has no signed URLs."""
        raise Unavailable(
            "SOUP_BLOBS_PRESIGNED_SECONDS needs blobs in a bucket (SOUP_BLOBS_URL): a folder has no signed URLs.",
            param="blobs_presigned_seconds",
        )

    def probe(self) -> str | None:
        """Try to use the folder; returns in some words why it cannot be used, None if it can."""
        fault = self.state.probe()
        return None if fault is None else fault.summary

    @property
    def is_failing(self) -> bool:
        """True if the last use of the folder failed."""
        return self.state.fault is not None

    def place(self, digest: str) -> Path:
        """The path of the blob's file; it need not exist."""
        return blob_path(self.folder, hex_of(digest))

    @contextmanager
    def _reading(self, digest: str) -> Iterator[None]:
        """Translate an OSError to DamagedBlob for one blob, or to Unavailable if the folder cannot be used."""
        try:
            yield
        except OSError as error:
            self.state.check()
            if isinstance(error, FileNotFoundError):
                raise missing(digest) from None
            raise unreadable(digest, error) from error


class LocalWriter:
    """A BlobWriter into a temporary file, which `commit` has the store adopt as the blob."""

    def __init__(self, blobs: WritableBlobs, digest: str, check: ContentCheck) -> None:
        self._blobs = blobs
        self._digest = digest
        self._folder = blobs.state.incoming
        self.temporary = self._folder / secrets.token_hex(16)
        self._check = check
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        """Create and lock the temporary file; repeated if a starting process removes it in between."""
        while self._file is None or not self.temporary.exists():
            if self._file is not None:
                self._file.close()
            self.temporary = self._folder / secrets.token_hex(16)
            self._blobs.state.check()  # else it would be written below a missing mount
            with self._blobs.state.writing():
                self._blobs.state.make_folder(self._folder)
                self._file = os.fdopen(self._blobs.state.create_file(self.temporary), "wb")
            with suppress(OSError):  # a file system without locks, where temporary files are not removed either
                fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def write(self, chunk: bytes) -> None:
        """Append; raises TooLarge beyond the limit."""
        file = self._open_file()
        self._check.add(chunk)
        with self._blobs.state.writing():
            file.write(chunk)

    def commit(self) -> None:
        """Verify the bytes, and have the store adopt the file; raises DigestMismatch, or Unavailable."""
        file = self._open_file()
        self._check.verify()
        self._blobs.adopt(file, self.temporary, self._digest)

    def __exit__(self, *_: object) -> None:
        """Close the file, and delete it unless it was committed."""
        try:
            if self._file is not None:
                with self._blobs.state.writing():
                    self._file.close()  # flushes, which fails on a full disk
        finally:
            with suppress(OSError):  # the folder is gone or not writable: the next start removes the file
                self.temporary.unlink(missing_ok=True)

    def _open_file(self) -> BinaryIO:
        return writable(self._file, "a blob is written inside 'with' and before its commit")


def _remove_abandoned(temporary: Path) -> None:
    """Delete a temporary file unless its writer has it locked; the lock of a dead process is released."""
    try:
        with temporary.open("r+b") as file:  # NFS locks only files that are open for writing
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink(missing_ok=True)
    except OSError:  # locked by its writer, renamed meanwhile, or a file system without locks
        return
