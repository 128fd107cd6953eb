"""The protocol of a blob store and of its writer; one conformance test class runs over every store there is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from registry.blobs.folder import BlobFolder
from registry.errors import DamagedBlob, DigestMismatch, InvalidName, TooLarge
from registry.names import DIGEST_PATTERN
from registry.spec import StoreMark, UploadPart


class BlobWriter(AbstractContextManager["BlobWriter"], Protocol):
    """A blob being written: `write` chunks, then `commit`; leaving without a commit leaves nothing behind.

    Outside of `with`, and after the commit, both raise Internal: what has its name never changes.
    """

    def write(self, chunk: bytes) -> None:
        """Append; raises TooLarge beyond the limit."""

    def commit(self) -> None:
        """Verify length and digest, then make the blob visible and durable; raises DigestMismatch."""


class BlobStore(Protocol):
    """Bytes by digest. Every method raises InvalidName for what is not a digest, before anything is touched.

    Every method that needs the store raises Unavailable while that cannot be used.
    `size`, `read` and `open` are asked for what was stored: they raise DamagedBlob where it is not there, or is not
    what its digest says. What is stored again, by `put_bytes` or a writer, takes the place of what is damaged.
    """

    def put_bytes(self, data: bytes) -> str:
        """Store bytes and return their digest; durable when this returns."""

    def writer(self, digest: str, *, max_bytes: int, length: int | None = None) -> BlobWriter:
        """A writer of the blob with this digest, and of `length` bytes where that is known."""

    def has(self, digest: str) -> bool:
        """Whether there is something under this digest, looked at or not."""

    def is_whole(self, digest: str) -> bool:
        """Whether the blob is stored, and is what its digest says."""

    def size(self, digest: str) -> int:
        """Its size in bytes; raises DamagedBlob."""

    def size_there(self, digest: str) -> int:
        """Its size without fetching it from elsewhere; raises DamagedBlob where it is missing, or known to be damaged.

        What has not been read yet may turn out to be damaged when it is.
        """

    def read(self, digest: str) -> bytes:
        """All its bytes; raises DamagedBlob."""

    def open(self, digest: str) -> BinaryIO:
        """Its bytes as a seekable file, all of them verified; raises DamagedBlob."""

    def delete(self, digest: str) -> None:
        """Forget it; nothing happens where it is not stored."""

    def delete_all(self, digests: Sequence[str]) -> None:
        """Forget each of them, as `delete` does; where it raises, some may be forgotten.

        Called while others wait: a store that is slow to answer raises Unavailable after some seconds.
        """

    def digests(self) -> Iterator[str]:
        """Every digest stored, in no order."""

    def trouble(self) -> str | None:
        """What keeps the store from being used now, in some words; it is tried out. None where it can be."""

    @property
    def in_trouble(self) -> bool:
        """Whether it could not be used when that was last tried."""


class SetAside(Protocol):
    """Blobs that a start set aside, since its database does not name them, and the mark of the store beside them."""

    @property
    def where(self) -> str:
        """Where they are, for people."""

    def put(self, digest: str, day: date) -> None:
        """Move a stored blob here."""

    def take(self, digest: str) -> bool:
        """Store a blob again that is here; whether it was."""

    def names(self) -> Iterator[str]:
        """Everything that is here, `<day>/<64 hex>`; what is somebody else's is not."""

    def beginning(self, name: str, size: int) -> bytes:
        """The first bytes of something that is here; raises OSError."""

    def remove(self, name: str) -> None:
        """Delete something that is here."""

    def mark(self) -> StoreMark | None:
        """What says whose the store is; raises Unavailable where that cannot be read."""

    def set_mark(self, mark: StoreMark) -> None:
        """Replace the mark, which the store then has to keep; durable when this returns."""


class ServerBlobs(BlobStore, Protocol):
    """A BlobStore that a server runs on: bytes may be looked at unverified, and come from files of this machine.

    `folder`, whose state is `state`, holds what is not whole yet: unfinished uploads, and what is being written.
    """

    @property
    def where(self) -> str:
        """The folder or the URL of the blobs, for people."""

    @property
    def shared(self) -> bool:
        """Whether servers of other data folders may use it."""

    @property
    def aside(self) -> SetAside:
        """What is set aside, and the mark."""

    @property
    def folder(self) -> Path:
        """A folder of this machine."""

    @property
    def state(self) -> BlobFolder:
        """Its state."""

    def check(self) -> None:
        """Raises Unavailable where the store is gone, or is another one."""

    def beginning(self, digest: str, size: int) -> bytes:
        """The first bytes stored under a digest, unverified; raises OSError, FileNotFoundError for a missing blob."""

    def stored_size(self, digest: str) -> int:
        """How many bytes are stored under a digest; raises OSError as `beginning`."""

    def chunks(self, digest: str, *, fresh: bool = False) -> Iterator[bytes]:
        """All bytes stored under a digest, unverified; raises OSError as `beginning`.

        With `fresh` they are what the disk holds, and not what memory remembers of it.
        """

    def scratch(self) -> AbstractContextManager[Path]:
        """A file of `folder` that another process may write to; it is gone when this ends."""

    def take_in(self, file: IO[bytes], path: Path, digest: str, *, size: int) -> None:
        """Make a file of `folder` that was verified, and is open, the blob; durable when this returns."""

    def uploads(self) -> UploadStore:
        """What keeps uploads that are not whole yet."""

    def signed_url(self, digest: str, *, seconds: float) -> str:
        """A URL at which anybody may get the bytes for so long; raises Unavailable where the store gives none."""


class UploadStore(Protocol):
    """The bytes of uploads that are not whole yet, by ids of ours (never a client's); threads share it.

    A folder keeps them as files that grow. A bucket keeps each part as an object, which the database has to name: what
    it names of an upload is given to `held` and `begin`, from byte 0 on without a gap.
    """

    @property
    def blobs(self) -> ServerBlobs:
        """What uploads become."""

    def held(self, id: str, received: int, parts: Sequence[UploadPart]) -> int:
        """How many of the bytes that the database acknowledged are there; raises Unavailable."""

    def open(self, id: str) -> OpenUpload:
        """An upload to write a part of, made if need be; entering raises Conflict where it is held by another."""

    def is_held(self, id: str) -> bool:
        """Whether somebody writes a part of it now, as far as can be told here."""

    def remove(self, id: str) -> bool:
        """Remove what there is of an upload; False where somebody writes to it now, or it cannot be removed."""

    def older_than(self, moment: float) -> Iterator[str]:
        """The uploads that were last written before a moment, in seconds since 1970; raises Unavailable."""


class OpenUpload(AbstractContextManager["OpenUpload"], Protocol):
    """An upload while a part is written: `begin`, `write`, then `keep` or `store`; what is not kept is gone after it.

    `end` is the byte that it ends before, with those of this part so far.
    """

    end: int

    def begin(self, offset: int, parts: Sequence[UploadPart] = ()) -> None:
        """Write from here on, where what is acknowledged ends."""

    def write(self, chunk: bytes) -> None:
        """Append; raises Unavailable."""

    def keep(self) -> UploadPart | None:
        """Make what was written durable; what the database has to name, None where that is nothing."""

    def store(self, digest: str) -> None:
        """Make all of it the blob with this digest; raises DigestMismatch, LostPartError, Unavailable."""

    def withdraw(self, part: UploadPart) -> None:
        """Remove what `keep` gave, where the database names another's part in its place."""

    def finish(self) -> None:
        """Remove the upload, once what was stored of it has a row."""

    def discard(self) -> None:
        """Remove the upload: what is held of it is of no use to anybody."""


class LostPartError(Exception):
    """An acknowledged part of an upload is not there, or not what it was: from its first byte on it is sent again."""

    def __init__(self, part: UploadPart) -> None:
        super().__init__(part.start)
        self.part = part


def hex_of(digest: str) -> str:
    """The 64 hex digits of a digest; raises InvalidName for anything else."""
    if not re.fullmatch(DIGEST_PATTERN, digest) or len(digest) != 71:
        raise InvalidName("A blob is named 'sha256:' and 64 lower-case hex digits.", param="digest")
    return digest[7:]


def missing(digest: str) -> DamagedBlob:
    """The error for a blob that was stored and is not there."""
    return _damaged(digest, "is missing on this server")


def damaged(digest: str, size: int) -> DamagedBlob:
    """The error for a blob whose stored bytes are others than its digest's."""
    return _damaged(digest, f"is damaged: the {size} bytes stored on this server are not those of its digest")


def unreadable(digest: str, error: OSError) -> DamagedBlob:
    """The error for a blob whose bytes the disk does not give."""
    return _damaged(digest, f"cannot be read on this server ({error.strerror})")


def _damaged(digest: str, what: str) -> DamagedBlob:
    return DamagedBlob(
        f"Blob {digest} {what}; push the file again, or have the operator put back a copy ('soup check' says what "
        "needs it).",
        param="digest",
    )


class Check:
    """Counts and hashes what is written, and verifies it at the end."""

    def __init__(self, digest: str, max_bytes: int, length: int | None) -> None:
        self._expected = hex_of(digest)
        self._max_bytes = max_bytes
        self._length = length
        self._sha = hashlib.sha256()
        self.size = 0
        """Bytes so far."""

    def add(self, chunk: bytes) -> None:
        """Take a chunk into account; raises TooLarge."""
        self.size += len(chunk)
        if self.size > self._max_bytes:
            raise TooLarge(f"A blob may have at most {self._max_bytes} bytes here.", param="digest")
        self._sha.update(chunk)

    def verify(self) -> None:
        """Raises DigestMismatch unless length and digest are as announced."""
        if self._length is not None and self.size != self._length:
            raise DigestMismatch(f"{self._length} bytes were announced and {self.size} came.", param="digest")
        if self._sha.hexdigest() != self._expected:
            raise DigestMismatch(
                f"The {self.size} bytes have digest sha256:{self._sha.hexdigest()}, not the one they were sent under.",
                param="digest",
            )
