"""Unfinished uploads as objects of a bucket, one for each part: `unfinished/<id>/<start>-<64 hex>`.

All servers share them, so that any server can continue an upload. An object counts once the database refers to it. If
two servers receive a part for the same offset, one records its part, and the object of the other is deleted with the
upload. This needs no lock, which a killed server would keep. Within a server one request at a time writes to an
upload. Parts are put into the server's cache too, so that only those of other servers are downloaded at the end.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from registry.blobs.bucket import Bucket
from registry.blobs.cache import BlobCache
from registry.blobs.contract import AcknowledgedUpload, ServerBlobs, hex_of, writable
from registry.errors import Conflict, DamagedBlob, NotFound, Unavailable
from registry.files import chunks_of
from registry.spec import UploadPart

UNFINISHED = "unfinished"
LIST_SECONDS = 3600.0
"""Minimum time between two lists of all uploads, since providers charge for lists."""


class ObjectUploads:
    """An UploadStore over a bucket; `blobs` are those that uploads become."""

    def __init__(self, blobs: ServerBlobs, bucket: Bucket, cache: BlobCache) -> None:
        self.blobs = blobs
        self.bucket = bucket
        self.cache = cache
        self._last_list: float | None = None
        self._locked: set[str] = set()
        self._lock = threading.Lock()

    def durable_bytes(self, upload: AcknowledgedUpload) -> int:
        """The bytes of the parts that the database has recorded; a lost one is noticed when it is read."""
        return upload.upload_parts[-1].stop if upload.upload_parts else 0

    def open(self, id: str) -> ObjectUpload:
        """An upload to write a part of."""
        return ObjectUpload(self, id)

    @contextmanager
    def locking(self, id: str) -> Iterator[None]:
        """Lock an upload within this server; raises Conflict if another request has it locked."""
        with self._lock:
            if id in self._locked:
                raise Conflict("Another request is writing to this upload.", param="id")
            self._locked.add(id)
        try:
            yield
        finally:
            with self._lock:
                self._locked.remove(id)

    def remove(self, id: str) -> bool:
        """Delete the objects of an upload, unrecorded ones too, and their files in this server's cache.

        Returns False if the store cannot be used.
        """
        try:
            keys = self.bucket.list_keys(f"{UNFINISHED}/{id}")
            for key in keys:
                if re.fullmatch("[0-9a-f]{64}", key[-64:]):  # else an object that is not ours
                    self.cache.remove(f"sha256:{key[-64:]}")
            self.bucket.delete(*keys)
        except Unavailable:
            return False
        return True

    def older_than(self, moment: float) -> Iterator[str]:
        """Ids of uploads whose objects are all from before a moment; none within LIST_SECONDS of the last list."""
        if self._last_list is not None and time.monotonic() - self._last_list < LIST_SECONDS:
            return
        newest: dict[str, float] = {}
        for key, modified in self.bucket.list_modified(UNFINISHED):
            id = key.removeprefix(f"{UNFINISHED}/").partition("/")[0]
            newest[id] = max(modified, newest.get(id, 0.0))
        self._last_list = time.monotonic()
        yield from (id for id, modified in newest.items() if id.startswith("upload-") and modified < moment)

    def key_of(self, id: str, upload_part: UploadPart) -> str:
        """The key of a part, by its offset and its digest, so that sending a part again stores the same object."""
        return f"{UNFINISHED}/{id}/{upload_part.start:015}-{hex_of(upload_part.digest)}"


class ObjectUpload(AbstractContextManager["ObjectUpload"]):
    """An OpenUpload whose part is written to a local file, and becomes an object when it is kept."""

    def __init__(self, uploads: ObjectUploads, id: str) -> None:
        self._uploads = uploads
        self._blobs = uploads.blobs
        self._acknowledged = AcknowledgedUpload(id)
        self._stack = ExitStack()
        self._path: Path | None = None
        self._file: BinaryIO | None = None
        self._sha256 = hashlib.sha256()
        self.end = 0
        """Size of the upload with the bytes written so far."""

    def __enter__(self) -> Self:
        """Open the file of the part; raises Conflict if another request of this server has the upload locked."""
        self._blobs.state.check()
        with ExitStack() as stack:
            stack.enter_context(self._uploads.locking(self._acknowledged.id))
            self._path = stack.enter_context(self._blobs.scratch())
            with self._blobs.state.writing():
                self._file = stack.enter_context(self._path.open("r+b"))
            self._stack = stack.pop_all()
        return self

    def begin(self, upload: AcknowledgedUpload) -> None:
        """Write after the acknowledged bytes."""
        self._acknowledged = upload
        self.end = upload.received

    @property
    def _size(self) -> int:
        return self.end - self._acknowledged.received

    def write(self, chunk: bytes) -> None:
        """Append; raises Unavailable if this server's disk is full."""
        with self._blobs.state.writing():
            self._writable_file().write(chunk)
        self._sha256.update(chunk)
        self.end += len(chunk)

    def keep(self) -> UploadPart | None:
        """Store the written bytes as an object, after which no more can be written; raises Unavailable."""
        file, path, size = self._writable_file(), self._path, self._size
        if size == 0 or path is None:
            return None
        with self._blobs.state.writing():
            file.flush()
        digest = f"sha256:{self._sha256.hexdigest()}"
        upload_part = UploadPart(start=self._acknowledged.received, size=size, digest=digest)
        self._blobs.check()
        self._uploads.bucket.put(self._key_of(upload_part), path, size)
        self._uploads.cache.keep(path, file, digest)
        file.close()
        return upload_part

    def chunks(self) -> Iterator[bytes]:
        """All bytes of the upload; raises NotFound if a part is missing or damaged in the store, or Unavailable."""
        for upload_part in self._acknowledged.upload_parts:
            with closing(self._open_part(upload_part)) as source:
                yield from chunks_of(source)
        file = self._writable_file()
        with self._blobs.state.writing():
            file.flush()
            file.seek(0)
        yield from chunks_of(file)

    def _open_part(self, upload_part: UploadPart) -> BinaryIO:
        cache, digest = self._uploads.cache, upload_part.digest
        try:
            with cache.lock(digest):
                return cache.open(digest) or cache.fetch(self._uploads.bucket, digest, self._key_of(upload_part))[0]
        except DamagedBlob:
            raise NotFound(
                "The store no longer has all the bytes of this upload. Open another, and send them again.", param="id"
            ) from None

    def remove(self) -> None:
        """Delete the objects, also those that another server stored; if the store cannot be used, a sweep does."""
        self._uploads.remove(self._acknowledged.id)
        for upload_part in self._acknowledged.upload_parts:  # also if another server has deleted their objects
            self._uploads.cache.remove(upload_part.digest)

    def __exit__(self, *_: object) -> None:
        """Delete the file of the part, and unlock the upload."""
        assert self._file is not None  # `__enter__` opened it
        with suppress(OSError):  # a full disk
            self._file.close()
        self._stack.close()

    def _key_of(self, upload_part: UploadPart) -> str:
        return self._uploads.key_of(self._acknowledged.id, upload_part)

    def _writable_file(self) -> BinaryIO:
        return writable(self._file, "an unfinished upload is written inside 'with' and before its part is kept")
