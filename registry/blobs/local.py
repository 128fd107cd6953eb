"""Blobs as files of one folder, `<first two hex>/<64 hex>`.

A blob is written beside its place, synced, renamed, and its folder synced: a crash leaves either the whole blob or a
temporary file, which the next start sweeps. Several processes may share the folder: whoever writes a temporary file
holds the operating system's lock on it, and only what nobody holds is swept. What is read was hashed: once, and again
when the file is another (`verified`).
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, BinaryIO, Protocol, Self

from registry.blobs.aside import Aside
from registry.blobs.contract import Check, damaged, hex_of, missing, unreadable
from registry.blobs.folder import ASIDE, BlobFolder, place_in, sync_place
from registry.blobs.unfinished import Unfinished
from registry.blobs.verified import Stamp, Verified
from registry.errors import DamagedBlob, Internal, Unavailable
from registry.files import open_regular, sync_directory
from registry.names import sha256_digest

log = logging.getLogger("soup.blobs")
NOTHING = sha256_digest(b"")
"""Of a file that becomes no blob."""


CHUNK = 1024 * 1024


class LocalBlobs:
    """A ServerBlobs over a folder, made if need be; not where `make` is False: then it is another process's."""

    shared = False

    def __init__(self, folder: Path, *, make: bool = True) -> None:
        self.folder = folder
        self.state = BlobFolder(folder)
        self.aside = Aside(self.state)
        self._verified = Verified()
        if make:
            self._make()

    def _make(self) -> None:
        """See that the folder is there, and sweep what crashes left in it."""
        folder, incoming = self.folder, self.state.incoming
        incoming.mkdir(parents=True, exist_ok=True)
        sync_directory(folder)
        sync_directory(folder.parent)
        for left_over in incoming.iterdir():
            _remove_abandoned(left_over)

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.folder)

    def check(self) -> None:
        """Raises Unavailable where the folder is gone, or is another one."""
        self.state.check()

    def put_bytes(self, data: bytes) -> str:
        """Store bytes and return their digest; durable when this returns."""
        digest = sha256_digest(data)
        if self.is_whole(digest):  # another thread may have renamed it a moment ago, its folder not yet synced
            with self.state.writing(len(data)):
                sync_place(self.place(digest))
            return digest
        with self.writer(digest, max_bytes=len(data), length=len(data)) as writer:
            writer.write(data)
            writer.commit()
        return digest

    def writer(self, digest: str, *, max_bytes: int, length: int | None = None) -> LocalWriter:
        """A writer of the blob with this digest."""
        return LocalWriter(self, digest, Check(digest, max_bytes, length))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A file beside the blobs that another process may write to. It is gone when this ends, however it does.

        Held until then, so that no process that starts sweeps it; after a crash the next start does.
        """
        with LocalWriter(self, NOTHING, Check(NOTHING, 0, None)) as writer:
            yield writer.temporary

    def has(self, digest: str) -> bool:
        """Whether the blob is stored."""
        with self._reading(digest):
            return self.place(digest).is_file()

    def is_whole(self, digest: str) -> bool:
        """Whether the blob is stored, and is what its digest says."""
        try:
            self.open(digest).close()
        except DamagedBlob:
            return False
        return True

    def size(self, digest: str) -> int:
        """Its size in bytes; raises DamagedBlob."""
        with self.open(digest) as file:
            return os.fstat(file.fileno()).st_size

    def size_there(self, digest: str) -> int:
        """Its size in bytes, looked at as `size` does; raises DamagedBlob."""
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
        """Raise DamagedBlob unless the file holds what the digest says; it is read where that is not known."""
        stamp = Stamp.of(file)
        if self._verified.knows(digest, stamp):
            return
        with self._verified.turn(digest):
            if self._verified.knows(digest, stamp):
                return
            if hashlib.file_digest(file, "sha256").hexdigest() != hex_of(digest):
                raise damaged(digest, stamp.size)
            if Stamp.of(file) == stamp:
                self._verified.note(digest, stamp)
        file.seek(0)

    def take_in(self, file: IO[bytes], path: Path, digest: str, *, size: int) -> None:
        """Make a file of this folder that was verified, and is open, the blob: synced, renamed, its place synced."""
        self.state.check()
        target = self.place(digest)
        repairs = self.has(digest) and not self.is_whole(digest)
        with self.state.writing(size):
            file.flush()
            os.fsync(file.fileno())
            target.parent.mkdir(exist_ok=True)
            path.replace(target)
            file.close()  # after the rename: until then the lock says that somebody needs it
            sync_place(target)
        self.state.wrote(size)
        if repairs:
            log.warning("blob %s was damaged: the right bytes were sent again and have replaced it", digest)

    def delete(self, digest: str) -> None:
        """Forget it, also where it was set aside."""
        self.state.check()
        with self.state.writing(0):
            self.place(digest).unlink(missing_ok=True)
            for copy in self.folder.glob(f"{ASIDE}/*/{hex_of(digest)}"):
                copy.unlink(missing_ok=True)
        self._verified.forget(digest)

    def delete_all(self, digests: Sequence[str]) -> None:
        """Forget each of them."""
        for digest in digests:
            self.delete(digest)

    def digests(self) -> Iterator[str]:
        """Every digest stored."""
        for path in self.folder.glob("??/*"):
            if re.fullmatch("[0-9a-f]{64}", path.name):  # a file of somebody else's is no blob
                yield "sha256:" + path.name

    def beginning(self, digest: str, size: int) -> bytes:
        """The first bytes of a file, unverified; raises OSError."""
        with self.place(digest).open("rb") as file:
            return file.read(size)

    def stored_size(self, digest: str) -> int:
        """The bytes of a file; raises OSError."""
        return self.place(digest).stat().st_size

    def chunks(self, digest: str, *, fresh: bool = False) -> Iterator[bytes]:
        """The bytes of a regular file, unverified; raises OSError."""
        with open_regular(self.place(digest)) as file:
            if fresh:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while chunk := file.read(CHUNK):
                yield chunk

    def uploads(self) -> Unfinished:
        """Uploads that are not whole yet, as files."""
        return Unfinished(self)

    def signed_url(self, digest: str, *, seconds: float) -> str:  # noqa: ARG002 - there is none
        """A folder gives none; raises Unavailable."""
        raise Unavailable(
            "SOUP_BLOBS_PRESIGNED_SECONDS needs blobs in a bucket (SOUP_BLOBS_URL): a folder gives no URL that is "
            "signed.",
            param="blobs_presigned_seconds",
        )

    def trouble(self) -> str | None:
        """What keeps the folder from being used now, in some words; it is tried out. None where it can be."""
        found = self.state.look()
        return None if found is None else found.what

    @property
    def in_trouble(self) -> bool:
        """Whether it could not be used when that was last tried."""
        return self.state.trouble is not None

    def place(self, digest: str) -> Path:
        """The file that the blob is, stored or not."""
        return place_in(self.folder, hex_of(digest))

    @contextmanager
    def _reading(self, digest: str) -> Iterator[None]:
        """Raise DamagedBlob where a blob is not there or the disk does not give it, Unavailable where no blob is."""
        try:
            yield
        except OSError as error:
            self.state.check()
            if isinstance(error, FileNotFoundError):
                raise missing(digest) from None
            raise unreadable(digest, error) from error


class TakesIn(Protocol):
    """What a LocalWriter writes for."""

    @property
    def state(self) -> BlobFolder:
        """The folder whose `incoming` the file is written in."""

    def take_in(self, file: IO[bytes], path: Path, digest: str, *, size: int) -> None:
        """Make the file the blob; durable when this returns."""


class LocalWriter:
    """A BlobWriter into a temporary file that `commit` has taken in as the blob."""

    def __init__(self, blobs: TakesIn, digest: str, check: Check) -> None:
        self._blobs = blobs
        self._digest = digest
        self._folder = blobs.state.incoming
        self.temporary = self._folder / secrets.token_hex(16)
        self._check = check
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        """Open the temporary file, and hold it: another process may sweep it between the two, then there is a next."""
        while self._file is None or not self.temporary.exists():
            if self._file is not None:
                self._file.close()
            self.temporary = self._folder / secrets.token_hex(16)
            self._blobs.state.check()  # nothing is written where a mount is missing
            with self._writing():
                self._folder.mkdir(exist_ok=True)
                self._file = self.temporary.open("xb")
            with suppress(OSError):  # a file system without locks: there nothing can be swept either
                fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def write(self, chunk: bytes) -> None:
        """Append; raises TooLarge beyond the limit."""
        file = self._open_file()
        self._check.add(chunk)
        with self._writing():
            file.write(chunk)

    def commit(self) -> None:
        """Verify, and have it taken in as the blob; raises DigestMismatch, or Unavailable."""
        file = self._open_file()
        self._check.verify()
        self._blobs.take_in(file, self.temporary, self._digest, size=self._check.size)

    def __exit__(self, *_: object) -> None:
        """Close, and remove what was not committed."""
        try:
            if self._file is not None:
                with self._writing():
                    self._file.close()  # flushes, which fails on a full disk
        finally:
            with suppress(OSError):  # where the folder is gone, or cannot be written any more: the next start sweeps it
                self.temporary.unlink(missing_ok=True)

    def _writing(self) -> AbstractContextManager[None]:
        """While open, what the system refuses is told as Unavailable: nobody's request is to blame."""
        return self._blobs.state.writing(self._check.size)

    def _open_file(self) -> BinaryIO:
        if self._file is None or self._file.closed:
            raise Internal("a blob is written inside 'with' and before its commit")
        return self._file


def _remove_abandoned(temporary: Path) -> None:
    """Remove a temporary file, unless somebody is writing it: a process that ended holds nothing any more."""
    try:
        with temporary.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            temporary.unlink(missing_ok=True)
    except OSError:  # held by its writer, moved to its place meanwhile, or a file system without locks
        return
