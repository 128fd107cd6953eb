"""Blobs as objects of a bucket, `<first two hex>/<64 hex>`: the keys are the names that files of a folder have.

What is written is hashed into a file of the server's own first, then stored as one object, which a store does whole or
not at all; it is acknowledged once the store says that it has it. To store it again is to store the same, so nothing
depends on conditions that only some stores know. What is read is fetched into the cache, hashed on the way.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import IO, BinaryIO

from pydantic import ValidationError

from registry.blobs.bucket import Bucket, ObjectStamp
from registry.blobs.cache import BlobCache
from registry.blobs.contract import Check, damaged, hex_of, missing
from registry.blobs.fetching import fetched
from registry.blobs.folder import ASIDE, MARK, BlobFolder
from registry.blobs.local import LocalBlobs, LocalWriter
from registry.blobs.unfinished_objects import UnfinishedObjects
from registry.blobs.verified import MOST
from registry.errors import DamagedBlob, Unavailable
from registry.names import sha256_digest
from registry.spec import StoreMark


class ObjectBlobs:
    """A ServerBlobs over a bucket. `staging` is a folder of this server's for what is not whole yet."""

    shared = True

    def __init__(self, bucket: Bucket, *, cache: BlobCache, staging: LocalBlobs) -> None:
        self._bucket = bucket
        self._cache = cache
        self._staging = staging
        self._known: dict[str, ObjectStamp] = {}
        """Objects that this process has stored, or fetched and hashed."""
        self._damaged: dict[str, ObjectStamp] = {}
        """Objects that this process has fetched, and whose bytes were others."""
        self._lock = threading.Lock()
        self.aside = ObjectAside(bucket)

    @property
    def where(self) -> str:
        """The URL of the bucket, which holds no secret."""
        return self._bucket.name

    @property
    def folder(self) -> Path:
        """The folder of what is not whole yet."""
        return self._staging.folder

    @property
    def state(self) -> BlobFolder:
        """The state of that folder."""
        return self._staging.state

    def check(self) -> None:
        """Raises Unavailable where bucket or folder are gone, or are others."""
        self._staging.check()
        self._bucket.check()

    def put_bytes(self, data: bytes) -> str:
        """Store bytes and return their digest; durable when this returns."""
        digest = sha256_digest(data)
        with self.writer(digest, max_bytes=len(data), length=len(data)) as writer:
            writer.write(data)
            writer.commit()
        return digest

    def writer(self, digest: str, *, max_bytes: int, length: int | None = None) -> LocalWriter:
        """A writer of the blob with this digest."""
        return LocalWriter(self, digest, Check(digest, max_bytes, length))

    def scratch(self) -> AbstractContextManager[Path]:
        """A file of this server that another process may write to. It is gone when this ends, however it does."""
        return self._staging.scratch()

    def take_in(self, file: IO[bytes], path: Path, digest: str, *, size: int) -> None:
        """Store a file that was verified, and is open, as the object of the blob; the file goes into the cache."""
        key = key_of(digest)
        self.check()
        with self.state.writing(size):
            file.flush()
        there = self._bucket.head(key)
        if there is None or not self._knows(digest, there):
            self._note(digest, self._bucket.put(key, path, size))
        kept = self._cache.keep(path, digest)
        if kept is not None:
            kept.close()
        file.close()

    def has(self, digest: str) -> bool:
        """Whether the blob is stored."""
        return self._bucket.head(key_of(digest)) is not None

    def is_whole(self, digest: str) -> bool:
        """Whether the blob is stored, and is what its digest says; an object that is not known yet is read for it."""
        there = self._bucket.head(key_of(digest))
        if there is None:
            return False
        if self._knows(digest, there):
            return True
        try:
            with self._cache.turn(digest):
                self._fetched(digest).close()
        except DamagedBlob:
            return False
        return True

    def size(self, digest: str) -> int:
        """Its size in bytes; raises DamagedBlob."""
        with self.open(digest) as file:
            return os.fstat(file.fileno()).st_size

    def size_there(self, digest: str) -> int:
        """Its size as the store says it; raises DamagedBlob where it is missing, or was found to be damaged."""
        there = self._bucket.head(key_of(digest))
        if there is None:
            raise missing(digest)
        with self._lock:
            is_damaged = self._damaged.get(digest) == there
        if is_damaged:
            raise damaged(digest, there.size)
        return there.size

    def read(self, digest: str) -> bytes:
        """All its bytes; raises DamagedBlob."""
        with self.open(digest) as file:
            return file.read()

    def open(self, digest: str) -> BinaryIO:
        """Its bytes as a seekable file, all of them verified; raises DamagedBlob. The cache needs no store."""
        found = self._cache.open(digest)
        if found is not None:
            return found
        with self._cache.turn(digest):
            return self._cache.open(digest) or self._fetched(digest)

    def _fetched(self, digest: str) -> BinaryIO:
        """The file of a blob, from the store; raises DamagedBlob where the store gives other bytes each time."""
        try:
            file, there = fetched(self._bucket, self._cache, digest, key_of(digest))
        except DamagedBlob:
            self._forget(digest)  # so that what is sent again takes its place
            there_now = self._bucket.head(key_of(digest))
            if there_now is not None:
                self._note_in(self._damaged, digest, there_now)
            raise
        self._note(digest, there)
        return file

    def delete(self, digest: str) -> None:
        """Forget it, also where it was set aside."""
        self._delete([digest])

    def delete_all(self, digests: Sequence[str]) -> None:
        """Forget each of them, also where they were set aside: a few requests, each of them tried once."""
        with self._bucket.briefly():
            self._delete(digests)

    def _delete(self, digests: Sequence[str]) -> None:
        keys, names = [key_of(digest) for digest in digests], {hex_of(digest) for digest in digests}
        if not keys:
            return
        self.check()
        aside = [f"{ASIDE}/{name}" for name in self.aside.names() if name[-64:] in names]
        self._bucket.delete(*keys, *aside)
        for digest in digests:
            self._cache.remove(digest)
            self._forget(digest)

    def digests(self) -> Iterator[str]:
        """Every digest stored."""
        for key in self._bucket.keys_under():
            if re.fullmatch("[0-9a-f]{2}/[0-9a-f]{64}", key):  # an object of somebody else's is no blob
                yield "sha256:" + key[3:]

    def beginning(self, digest: str, size: int) -> bytes:
        """The first bytes of an object, unverified; raises FileNotFoundError."""
        return self._bucket.part(key_of(digest), 0, min(size, self.stored_size(digest)))

    def stored_size(self, digest: str) -> int:
        """The bytes of an object; raises FileNotFoundError."""
        there = self._bucket.head(key_of(digest))
        if there is None:
            raise FileNotFoundError(digest)
        return there.size

    def chunks(self, digest: str, *, fresh: bool = False) -> Iterator[bytes]:  # noqa: ARG002 - never from the cache
        """The bytes that the store holds, unverified; raises FileNotFoundError."""
        yield from self._bucket.parts(key_of(digest), self.stored_size(digest))

    def trouble(self) -> str | None:
        """What keeps the bucket, or this server's folder, from being used now; both are tried out."""
        local = self._staging.trouble()
        if local is not None:
            return f"the folder of uploads {local}"
        found = self._bucket.look()
        return None if found is None else found.what

    @property
    def in_trouble(self) -> bool:
        """Whether one of them could not be used when that was last tried."""
        return self._bucket.trouble is not None or self._staging.in_trouble

    def signed_url(self, digest: str, *, seconds: float) -> str:
        """A URL at which anybody may get the object for so long. The store is not asked."""
        return self._bucket.signed(key_of(digest), seconds)

    def uploads(self) -> UnfinishedObjects:
        """Uploads that are not whole yet, as objects of parts."""
        return UnfinishedObjects(self, self._bucket, self._cache)

    def _knows(self, digest: str, there: ObjectStamp) -> bool:
        with self._lock:
            return self._known.get(digest) == there

    def _forget(self, digest: str) -> None:
        with self._lock:
            self._known.pop(digest, None)

    def _note(self, digest: str, there: ObjectStamp) -> None:
        self._note_in(self._known, digest, there)
        with self._lock:
            self._damaged.pop(digest, None)

    def _note_in(self, noted: dict[str, ObjectStamp], digest: str, there: ObjectStamp) -> None:
        with self._lock:
            noted[digest] = there
            if len(noted) > MOST:
                noted.pop(next(iter(noted)))


class ObjectAside:
    """A SetAside of a bucket: what is set aside there under `set-aside/<day>/<64 hex>`, and its mark."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def where(self) -> str:
        """The URL of what is set aside."""
        return f"{self._bucket.name}/{ASIDE}"

    def put(self, digest: str, day: date) -> None:
        """Move a stored blob here."""
        self._bucket.copy(key_of(digest), f"{ASIDE}/{day.isoformat()}/{hex_of(digest)}")
        self._bucket.delete(key_of(digest))

    def take(self, digest: str) -> bool:
        """Store a blob again that is here; whether it was."""
        for name in self.names():
            if name.endswith(hex_of(digest)):
                self._bucket.copy(f"{ASIDE}/{name}", key_of(digest))
                self.remove(name)
                return True
        return False

    def names(self) -> Iterator[str]:
        """Everything that is here, `<day>/<64 hex>`; an object of somebody else's is not."""
        for key in self._bucket.keys_under(ASIDE):
            name = key.removeprefix(f"{ASIDE}/")
            if re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}/[0-9a-f]{64}", name):
                yield name

    def beginning(self, name: str, size: int) -> bytes:
        """The first bytes of something that is here; raises FileNotFoundError."""
        key = f"{ASIDE}/{name}"
        there = self._bucket.head(key)
        if there is None:
            raise FileNotFoundError(key)
        return self._bucket.part(key, 0, min(size, there.size))

    def remove(self, name: str) -> None:
        """Delete something that is here."""
        self._bucket.delete(f"{ASIDE}/{name}")

    def mark(self) -> StoreMark | None:
        """What the bucket says; raises Unavailable where that cannot be read."""
        try:
            return self._bucket.mark()
        except ValidationError as error:
            raise Unavailable(
                f"{self._bucket.name}/{MARK} is not what a server wrote: it says which database these blobs belong to. "
                "Put back a copy, or delete it where the database is the right one.",
                param="blobs",
            ) from error

    def set_mark(self, mark: StoreMark) -> None:
        """Replace the mark, which the bucket then has to keep; durable when this returns."""
        data = mark.model_dump_json().encode() + b"\n"
        self._bucket.put(MARK, data, len(data))
        self._bucket.store = mark.store


def key_of(digest: str) -> str:
    """The key of a blob's object."""
    name = hex_of(digest)
    return f"{name[:2]}/{name}"
