"""Protocols of blob stores, their writers and unfinished uploads; one class of tests holds for every blob store."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from io import FileIO
from pathlib import Path
from typing import IO, BinaryIO, Protocol, TypeVar

from registry.blobs.folder import BlobFolder
from registry.errors import DamagedBlob, DigestMismatch, Internal, InvalidName, TooLarge
from registry.names import DIGEST_PATTERN
from registry.spec import StoreMark, UploadPart

File = TypeVar("File", BinaryIO, FileIO)


class BlobWriter(AbstractContextManager["BlobWriter"], Protocol):
    """A blob being written: `write` chunks, then `commit`; without a commit nothing is stored.

    Outside of `with`, and after the commit, both raise Internal, since a stored blob never changes.
    """

    def write(self, chunk: bytes) -> None:
        """Append; raises TooLarge beyond the limit."""

    def commit(self) -> None:
        """Verify length and digest, then make the blob visible and durable; raises DigestMismatch."""


class BlobStore(Protocol):
    """Bytes by digest. Every method raises InvalidName for a malformed digest before it does anything.

    Every method that needs the store raises Unavailable while the store cannot be used. `size`, `read` and `open` raise
    DamagedBlob if the blob is missing or its bytes have another digest. Storing a blob again, by `put_bytes` or a
    writer, replaces damaged bytes.
    """

    def put_bytes(self, data: bytes) -> str:
        """Store bytes and return their digest; durable when this returns."""

    def writer(self, digest: str, *, max_bytes: int, length: int | None = None) -> BlobWriter:
        """A writer of the blob with this digest, of `length` bytes if that is given."""

    def has(self, digest: str) -> bool:
        """Return True if something is stored under this digest, verified or not."""

    def is_whole(self, digest: str) -> bool:
        """Return True if the blob is stored and verified."""

    def size(self, digest: str) -> int:
        """Its size in bytes; raises DamagedBlob."""

    def size_unverified(self, digest: str) -> int:
        """Its size without reading the bytes; raises DamagedBlob if it is missing, or known to be damaged."""

    def read(self, digest: str) -> bytes:
        """All its bytes; raises DamagedBlob."""

    def open(self, digest: str) -> BinaryIO:
        """Its bytes as a seekable file, all of them verified; raises DamagedBlob."""

    def delete(self, digest: str) -> None:
        """Delete it, if it is stored."""

    def delete_all(
        self, digests: Sequence[str], *, set_aside: bool = True, confirm: Callable[[], None] | None = None
    ) -> None:
        """Delete each of them that is stored, and with `set_aside` copies of them; if it raises, some may be deleted.

        `confirm` is called right before the first is deleted; if it raises, none is. Called while others wait: a store
        that is slow to answer raises Unavailable after some seconds.
        """

    def digests(self) -> Iterator[str]:
        """Digests of all stored blobs, in no order."""

    def probe(self) -> str | None:
        """Try to use the store; returns in some words why it cannot be used, None if it can."""

    @property
    def is_failing(self) -> bool:
        """True if the last use of the store failed."""


class SetAsideBlobs(Protocol):
    """Blobs that a start has set aside, since its database does not refer to them, and the mark of the store."""

    @property
    def location(self) -> str:
        """The folder or URL of the set-aside blobs, for messages."""

    def put(self, digest: str, day: date) -> None:
        """Set a stored blob aside."""

    def restore(self, digest: str) -> bool:
        """Make a set-aside blob a stored one again; returns False if it is not set aside."""

    def names(self) -> Iterator[str]:
        """Names of the set-aside blobs, `<day>/<64 hex>`; other files are ignored."""

    def mark(self) -> StoreMark | None:
        """The mark that ties the store to a database, None without one; raises Unavailable if it cannot be read."""

    def set_mark(self, mark: StoreMark) -> None:
        """Replace the mark, which later checks expect; durable when this returns."""


class ServerBlobs(BlobStore, Protocol):
    """A BlobStore of a server, with access to unverified bytes and to a folder of this machine.

    `folder`, whose state is `state`, holds unfinished uploads and blobs that are being written.
    """

    @property
    def location(self) -> str:
        """The folder or URL of the blobs, for messages."""

    @property
    def is_shared(self) -> bool:
        """True if servers with other data folders may use it."""

    @property
    def set_aside(self) -> SetAsideBlobs:
        """The set-aside blobs, and the mark."""

    @property
    def folder(self) -> Path:
        """A folder of this machine."""

    @property
    def state(self) -> BlobFolder:
        """The state of `folder`."""

    def check(self) -> None:
        """Raise Unavailable if the store is gone, or is another one."""

    def read_prefix(self, digest: str, size: int) -> bytes:
        """The first bytes of a blob, unverified; raises OSError, FileNotFoundError for a missing blob."""

    def stored_size(self, digest: str) -> int:
        """The size of a blob, unverified; raises OSError like `read_prefix`."""

    def chunks(self, digest: str, *, fresh: bool = False) -> Iterator[bytes]:
        """All bytes of a blob, unverified; raises OSError like `read_prefix`.

        With `fresh` they are read from the disk, not from the page cache.
        """

    def scratch(self) -> AbstractContextManager[Path]:
        """A file in `folder` that another process may write to; deleted at the end of the context."""

    def adopt(self, file: IO[bytes], path: Path, digest: str) -> None:
        """Make an open, verified file of `folder` the blob with this digest; durable when this returns."""

    def uploads(self) -> UploadStore:
        """The store of unfinished uploads."""

    def signed_url(self, digest: str, *, seconds: float) -> str:
        """A URL at which anybody may get the bytes for so long; raises Unavailable if the store has none."""


@dataclass(frozen=True)
class AcknowledgedUpload:
    """The part of an upload that the database has acknowledged: the bytes from 0 to before `received`.

    `upload_parts` are those of it that are stored as objects, without gaps.
    """

    id: str
    received: int = 0
    upload_parts: Sequence[UploadPart] = ()


class UploadStore(Protocol):
    """The bytes of unfinished uploads, by ids that the server assigns; threads share it.

    In a folder an upload is a growing file. In a bucket each part is an object, and counts once the database refers to
    it.
    """

    @property
    def blobs(self) -> ServerBlobs:
        """The blobs that uploads become."""

    def durable_bytes(self, upload: AcknowledgedUpload) -> int:
        """The number of acknowledged bytes that are stored; raises Unavailable."""

    def open(self, id: str) -> OpenUpload:
        """An upload to write a part of, created if necessary; entering raises Conflict if another writer locks it."""

    def remove(self, id: str) -> bool:
        """Remove the bytes of an upload; returns False if it is locked, or cannot be removed."""

    def older_than(self, moment: float) -> Iterator[str]:
        """Ids of uploads last written before a moment, in seconds since 1970; raises Unavailable."""


class OpenUpload(AbstractContextManager["OpenUpload"], Protocol):
    """An upload while a part is written: `begin`, `write`, then `keep` or `chunks`; else the part is dropped.

    `end` is the size of the upload with the bytes written so far.
    """

    end: int

    def begin(self, upload: AcknowledgedUpload) -> None:
        """Write after the acknowledged bytes."""

    def write(self, chunk: bytes) -> None:
        """Append; raises Unavailable."""

    def keep(self) -> UploadPart | None:
        """Make the written bytes durable; returns the part that the database has to record, None if it needs not."""

    def chunks(self) -> Iterator[bytes]:
        """All bytes of the upload, with those of this part; raises NotFound if the store has lost some, Unavailable."""

    def remove(self) -> None:
        """Remove the upload, after its blob was recorded or because it cannot be finished."""


def writable(file: File | None, usage: str) -> File:
    """An open file; raises Internal with `usage`, which says when it may be written, before or after that."""
    if file is None or file.closed:
        raise Internal(usage)
    return file


def hex_of(digest: str) -> str:
    """The 64 hex digits of a digest; raises InvalidName for anything else."""
    if not re.fullmatch(DIGEST_PATTERN, digest) or len(digest) != 71:
        raise InvalidName("A blob is named 'sha256:' and 64 lower-case hex digits.", param="digest")
    return digest[7:]


def missing(digest: str) -> DamagedBlob:
    """The error for a stored blob that is missing."""
    return _damaged(digest, "is missing on this server")


def damaged(digest: str, size: int) -> DamagedBlob:
    """The error for a blob whose stored bytes have another digest."""
    return _damaged(digest, f"is damaged: the {size} bytes stored on this server are not those of its digest")


def unreadable(digest: str, error: OSError) -> DamagedBlob:
    """The error for a blob that the disk fails to read."""
    return _damaged(digest, f"cannot be read on this server ({error.strerror})")


def _damaged(digest: str, damage: str) -> DamagedBlob:
    return DamagedBlob(
        f"Blob {digest} {damage}; push the file again, or have the operator put back a copy ('soup check' says what "
        "needs it).",
        param="digest",
    )


class ContentCheck:
    """Counts and hashes the chunks of a blob, and verifies length and digest at the end."""

    def __init__(self, digest: str, max_bytes: int, length: int | None) -> None:
        self._expected = hex_of(digest)
        self._max_bytes = max_bytes
        self._length = length
        self._sha = hashlib.sha256()
        self.size = 0
        """Bytes so far."""

    def add(self, chunk: bytes) -> None:
        """Add a chunk; raises TooLarge."""
        self.size += len(chunk)
        if self.size > self._max_bytes:
            raise TooLarge(f"A blob may have at most {self._max_bytes} bytes here.", param="digest")
        self._sha.update(chunk)

    def verify(self) -> None:
        """Raise DigestMismatch unless length and digest are as announced."""
        if self._length is not None and self.size != self._length:
            raise DigestMismatch(f"{self.size} bytes arrived instead of the announced {self._length}.", param="digest")
        if self._sha.hexdigest() != self._expected:
            raise DigestMismatch(
                f"The {self.size} bytes have digest sha256:{self._sha.hexdigest()}, not the one they were sent under.",
                param="digest",
            )
