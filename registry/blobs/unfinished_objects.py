"""Uploads that are not whole yet as objects of a bucket, `unfinished/<id>/<start>-<64 hex>`: one for each part.

Every server sees them, so that any goes on where another ended. An object counts once the database names it: of two
servers that take a part for the same place one names its own, the other removes it, and no lock is needed that a killed
server would keep. Within a server one request at a time writes to an upload.
What came here is in this server's cache as well, so that only parts of other servers are fetched at the end.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from registry.blobs.bucket import Bucket
from registry.blobs.cache import BlobCache
from registry.blobs.contract import BlobWriter, LostPartError, ServerBlobs, hex_of
from registry.blobs.fetching import fetched
from registry.errors import Conflict, DamagedBlob, Internal, Unavailable
from registry.spec import UploadPart

UNFINISHED = "unfinished"
CHUNK = 1024 * 1024
LISTED_EVERY = 3600.0
"""Seconds between two looks at all that is there: a list of a bucket is paid for."""


class UnfinishedObjects:
    """An UploadStore over a bucket; `blobs` are those that uploads become."""

    def __init__(self, blobs: ServerBlobs, bucket: Bucket, cache: BlobCache) -> None:
        self.blobs = blobs
        self.bucket = bucket
        self.cache = cache
        self._listed: float | None = None
        self._held: set[str] = set()
        self._lock = threading.Lock()

    def held(self, id: str, received: int, parts: Sequence[UploadPart]) -> int:  # noqa: ARG002 - parts say it
        """The bytes of the parts that the database names; whether one is lost is seen when it is read."""
        return parts[-1].stop if parts else 0

    def open(self, id: str) -> UnfinishedObject:
        """An upload to write a part of."""
        return UnfinishedObject(self, id)

    @contextmanager
    def holding(self, id: str) -> Iterator[None]:
        """While open, no other request of this server writes to the upload; raises Conflict where one does."""
        with self._lock:
            if id in self._held:
                raise Conflict("Another request is writing to this upload.", param="id")
            self._held.add(id)
        try:
            yield
        finally:
            with self._lock:
                self._held.remove(id)

    def is_held(self, id: str) -> bool:  # noqa: ARG002 - for the protocol
        """False: what others write now, the database decides."""
        return False

    def remove(self, id: str) -> bool:
        """Remove the objects of an upload, also those that no row ever named; False where the store is away."""
        try:
            self.bucket.delete(*self.bucket.keys_under(f"{UNFINISHED}/{id}"))
        except Unavailable:
            return False
        return True

    def older_than(self, moment: float) -> Iterator[str]:
        """The uploads whose objects are all from before a moment; nothing but once in an hour."""
        if self._listed is not None and time.monotonic() - self._listed < LISTED_EVERY:
            return
        newest: dict[str, float] = {}
        for key, modified in self.bucket.ages_under(UNFINISHED):
            id = key.removeprefix(f"{UNFINISHED}/").partition("/")[0]
            newest[id] = max(modified, newest.get(id, 0.0))
        self._listed = time.monotonic()
        yield from (id for id, modified in newest.items() if modified < moment)

    def key_of(self, id: str, part: UploadPart) -> str:
        """The key of a part: of a place and its bytes, so that to send a part again is to store the same."""
        return f"{UNFINISHED}/{id}/{part.start:015}-{hex_of(part.digest)}"


class UnfinishedObject(AbstractContextManager["UnfinishedObject"]):
    """An OpenUpload: a part is written to a file of this server's, and is an object once it is kept."""

    def __init__(self, files: UnfinishedObjects, id: str) -> None:
        self._files = files
        self._blobs = files.blobs
        self._id = id
        self._parts: Sequence[UploadPart] = ()
        self._stack = ExitStack()
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._sha = hashlib.sha256()
        self._start = 0
        self._stored: str | None = None
        self.end = 0
        """The byte that the upload ends before, with those of this part so far."""

    def __enter__(self) -> Self:
        """Open the file of the part; raises Conflict where another request of this server writes to the upload."""
        self._blobs.state.check()
        with ExitStack() as stack:
            stack.enter_context(self._files.holding(self._id))
            self._path = stack.enter_context(self._blobs.scratch())
            with self._blobs.state.writing(0):
                self._file = stack.enter_context(self._path.open("r+b"))
            self._stack = stack.pop_all()
        return self

    def begin(self, offset: int, parts: Sequence[UploadPart] = ()) -> None:
        """Write from here on, after these parts."""
        self._parts = tuple(parts)
        self._start = self.end = offset

    def write(self, chunk: bytes) -> None:
        """Append; raises Unavailable where this server's disk is full."""
        with self._blobs.state.writing(self.end + len(chunk) - self._start):
            self._held().write(chunk)
        self._sha.update(chunk)
        self.end += len(chunk)

    def keep(self) -> UploadPart | None:
        """Store what was written as an object; nothing is written after it. Raises Unavailable."""
        file, path, size = self._held(), self._path, self.end - self._start
        if size == 0 or path is None:
            return None
        with self._blobs.state.writing(size):
            file.flush()
        part = UploadPart(start=self._start, size=size, digest=f"sha256:{self._sha.hexdigest()}")
        self._blobs.check()
        self._files.bucket.put(self._files.key_of(self._id, part), path, size)
        kept = self._files.cache.keep(path, part.digest)
        if kept is not None:
            kept.close()
        file.close()
        return part

    def store(self, digest: str) -> None:
        """Make all of it the blob with this digest: its parts, and what was written now.

        Raises DigestMismatch, or LostPartError where a part is not what was stored.
        """
        file = self._held()
        with self._blobs.writer(digest, max_bytes=self.end, length=self.end) as writer:
            for part in self._parts:
                with closing(self._opened(part)) as source:
                    _copy(source, writer)
            with self._blobs.state.writing(self.end - self._start):
                file.flush()
                file.seek(0)
            _copy(file, writer)
            writer.commit()
        self._stored = digest

    def _opened(self, part: UploadPart) -> BinaryIO:
        cache = self._files.cache
        try:
            with cache.turn(part.digest):
                found = cache.open(part.digest)
                if found is not None:
                    return found
                return fetched(self._files.bucket, cache, part.digest, self._files.key_of(self._id, part))[0]
        except DamagedBlob:
            raise LostPartError(part) from None

    def withdraw(self, part: UploadPart) -> None:
        """Remove the object of a part; where the store is away it goes with the upload."""
        with suppress(Unavailable):
            self._files.bucket.delete(self._files.key_of(self._id, part))
        self._files.cache.remove(part.digest)

    def finish(self) -> None:
        """Remove the objects; a sweep does where the store is away."""
        self._files.remove(self._id)
        for part in self._parts:
            if part.digest != self._stored:  # an upload in one part is what it became
                self._files.cache.remove(part.digest)

    def discard(self) -> None:
        """Remove the objects, and those that another server stored for the same upload."""
        self.finish()

    def __exit__(self, *_: object) -> None:
        """Remove the file of the part."""
        with suppress(OSError):  # what a full disk did not take
            self._held_at_all().close()
        self._stack.close()

    def _held_at_all(self) -> BinaryIO:
        if self._file is None:
            raise Internal("an unfinished upload is used inside 'with'")
        return self._file

    def _held(self) -> BinaryIO:
        file = self._held_at_all()
        if file.closed:
            raise Internal("an unfinished upload is not written after its part was kept")
        return file


def _copy(source: BinaryIO, target: BlobWriter) -> None:
    while chunk := source.read(CHUNK):
        target.write(chunk)
