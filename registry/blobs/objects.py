"""Blobs as objects of a bucket, with keys `<first two hex>/<64 hex>` like the files of a folder.

A blob is written to a local file and hashed, then stored as one object, which is atomic, and acknowledged once the
store has confirmed it. Storing a blob twice is harmless, so no conditional requests are needed, which some stores lack.
Reads go through the cache, and are verified while they are downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import IO, BinaryIO

from pydantic import ValidationError

from registry.blobs.bucket import Bucket, ObjectStamp
from registry.blobs.cache import BlobCache
from registry.blobs.contract import damaged, hex_of, missing
from registry.blobs.folder import ASIDE, MARK
from registry.blobs.local import LocalBlobs, WritableBlobs
from registry.blobs.object_uploads import ObjectUploads
from registry.blobs.verified import VerifiedBlobs
from registry.errors import DamagedBlob, Unavailable
from registry.spec import StoreMark


class ObjectBlobs(WritableBlobs):
    """A ServerBlobs over a bucket; `staging` is a local folder for unfinished uploads and files being written."""

    is_shared = True

    def __init__(self, bucket: Bucket, *, cache: BlobCache, staging: LocalBlobs) -> None:
        self._bucket = bucket
        self._cache = cache
        self._staging = staging
        self.state = staging.state
        self._verified = VerifiedBlobs[ObjectStamp]()
        """Objects that this process has stored, or downloaded and verified, by digest."""
        self._damaged = VerifiedBlobs[ObjectStamp]()
        """Objects that this process has downloaded with other bytes than their digest's."""
        self.set_aside = SetAsideObjects(bucket)

    @property
    def location(self) -> str:
        """The URL of the bucket, which holds no secret."""
        return self._bucket.name

    @property
    def folder(self) -> Path:
        """The local folder."""
        return self._staging.folder

    def check(self) -> None:
        """Raise Unavailable if the bucket or the folder is gone, or is another one."""
        self._staging.check()
        self._bucket.check()

    def scratch(self) -> AbstractContextManager[Path]:
        """A local file that another process may write to; deleted at the end of the context."""
        return self._staging.scratch()

    def adopt(self, file: IO[bytes], path: Path, digest: str) -> None:
        """Store an open, verified file as the object of the blob; the file goes into the cache."""
        key = key_of(digest)
        self.check()
        with self.state.writing():
            file.flush()
        stamp = self._bucket.head(key)
        if stamp is None or not self._verified.has(digest, stamp):
            self._note(digest, self._bucket.put(key, path, path.stat().st_size))
        self._cache.keep(path, file, digest)
        file.close()

    def has(self, digest: str) -> bool:
        """Return True if the blob is stored, verified or not."""
        return self._bucket.head(key_of(digest)) is not None

    def is_whole(self, digest: str) -> bool:
        """Return True if the blob is stored and verified; downloads it unless it was verified before."""
        stamp = self._bucket.head(key_of(digest))
        if stamp is None:
            return False
        if self._verified.has(digest, stamp):
            return True
        try:
            with self._cache.lock(digest):
                self._fetch(digest).close()
        except DamagedBlob:
            return False
        return True

    def size_unverified(self, digest: str) -> int:
        """Its size in bytes, without a download; raises DamagedBlob if it is missing, or was found to be damaged."""
        stamp = self._bucket.head(key_of(digest))
        if stamp is None:
            raise missing(digest)
        if self._damaged.has(digest, stamp):
            raise damaged(digest, stamp.size)
        return stamp.size

    def read(self, digest: str) -> bytes:
        """All its bytes; raises DamagedBlob."""
        with self.open(digest) as file:
            return file.read()

    def open(self, digest: str) -> BinaryIO:
        """Its bytes as a seekable file, all of them verified; raises DamagedBlob. A cached one needs no request."""
        cached = self._cache.open(digest)
        if cached is not None:
            return cached
        with self._cache.lock(digest):
            return self._cache.open(digest) or self._fetch(digest)

    def _fetch(self, digest: str) -> BinaryIO:
        """Download a blob; raises DamagedBlob if it is missing, or has other bytes at every read."""
        try:
            file, stamp = self._cache.fetch(self._bucket, digest, key_of(digest))
        except DamagedBlob:
            self._verified.remove(digest)  # so that the blob is stored when it is sent again
            damaged_stamp = self._bucket.head(key_of(digest))
            if damaged_stamp is not None:
                self._damaged.add(digest, damaged_stamp)
            raise
        self._note(digest, stamp)
        return file

    def delete(self, digest: str) -> None:
        """Delete it, also if it was set aside."""
        self._delete([digest])

    def delete_all(
        self, digests: Sequence[str], *, set_aside: bool = True, confirm: Callable[[], None] | None = None
    ) -> None:
        """Delete each of them, by default also copies that were set aside, with a few requests that are tried once."""
        with self._bucket.single_attempt():
            self._delete(digests, set_aside=set_aside, confirm=confirm)

    def _delete(
        self, digests: Sequence[str], *, set_aside: bool = True, confirm: Callable[[], None] | None = None
    ) -> None:
        keys, names = [key_of(digest) for digest in digests], {hex_of(digest) for digest in digests}
        if not keys:
            return
        self.check()
        copies = [f"{ASIDE}/{name}" for name in self.set_aside.names() if name[-64:] in names] if set_aside else []
        if confirm is not None:
            confirm()
        self._bucket.delete(*keys, *copies)
        for digest in digests:
            self._cache.remove(digest)
            self._verified.remove(digest)

    def digests(self) -> Iterator[str]:
        """Digests of all stored blobs."""
        for key in self._bucket.list_keys():
            if re.fullmatch("[0-9a-f]{2}/[0-9a-f]{64}", key):  # else an object that is not ours
                yield "sha256:" + key[3:]

    def read_prefix(self, digest: str, size: int) -> bytes:
        """The first bytes of a blob, unverified; raises FileNotFoundError."""
        return self._bucket.read_range(key_of(digest), 0, min(size, self.stored_size(digest)))

    def stored_size(self, digest: str) -> int:
        """The size of a blob, unverified; raises FileNotFoundError."""
        stamp = self._bucket.head(key_of(digest))
        if stamp is None:
            raise FileNotFoundError(digest)
        return stamp.size

    def chunks(self, digest: str, *, fresh: bool = False) -> Iterator[bytes]:  # noqa: ARG002 - always from the store
        """All bytes of a blob, unverified, from the store and not from the cache; raises FileNotFoundError."""
        yield from self._bucket.read_chunks(key_of(digest), self.stored_size(digest))

    def probe(self) -> str | None:
        """Try to use the folder and the bucket; returns in some words why one cannot be used, None if both can."""
        local_fault = self._staging.probe()
        if local_fault is not None:
            return f"the folder of uploads {local_fault}"
        fault = self._bucket.probe()
        return None if fault is None else fault.summary

    @property
    def is_failing(self) -> bool:
        """True if the last use of the bucket or of the folder failed."""
        return self._bucket.fault is not None or self._staging.is_failing

    def signed_url(self, digest: str, *, seconds: float) -> str:
        """A URL at which anybody may get the object for so long; signing it sends no request to the store."""
        return self._bucket.sign_url(key_of(digest), seconds)

    def uploads(self) -> ObjectUploads:
        """The store of unfinished uploads, as an object for each part."""
        return ObjectUploads(self, self._bucket, self._cache)

    def _note(self, digest: str, stamp: ObjectStamp) -> None:
        self._verified.add(digest, stamp)
        self._damaged.remove(digest)


class SetAsideObjects:
    """A SetAsideBlobs of a bucket, under the keys `set-aside/<day>/<64 hex>`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def location(self) -> str:
        """The URL of the set-aside blobs."""
        return f"{self._bucket.name}/{ASIDE}"

    def put(self, digest: str, day: date) -> None:
        """Set a stored blob aside."""
        self._bucket.copy(key_of(digest), f"{ASIDE}/{day.isoformat()}/{hex_of(digest)}")
        self._bucket.delete(key_of(digest))

    def restore(self, digest: str) -> bool:
        """Make a set-aside blob a stored one again; returns False if it is not set aside."""
        for name in self.names():
            if name.endswith(hex_of(digest)):
                self._bucket.copy(f"{ASIDE}/{name}", key_of(digest))
                self._bucket.delete(f"{ASIDE}/{name}")
                return True
        return False

    def names(self) -> Iterator[str]:
        """Names of the set-aside blobs, `<day>/<64 hex>`; other objects are ignored."""
        for key in self._bucket.list_keys(ASIDE):
            name = key.removeprefix(f"{ASIDE}/")
            if re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}/[0-9a-f]{64}", name):
                yield name

    def mark(self) -> StoreMark | None:
        """The bucket's mark, None without one; raises Unavailable if it cannot be read."""
        try:
            return self._bucket.mark()
        except ValidationError as error:
            raise Unavailable(
                f"{self._bucket.name}/{MARK}, which says which database these blobs belong to, was not written by "
                "a server. Restore a copy, or delete it if the database is the right one.",
                param="blobs",
            ) from error

    def set_mark(self, mark: StoreMark) -> None:
        """Replace the mark, which later checks expect; durable when this returns."""
        data = mark.model_dump_json().encode() + b"\n"
        self._bucket.put(MARK, data, len(data))
        self._bucket.store = mark.store


def key_of(digest: str) -> str:
    """The key of a blob's object."""
    name = hex_of(digest)
    return f"{name[:2]}/{name}"
