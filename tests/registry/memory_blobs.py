"""Blobs in a dictionary, for tests that need no durability."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Self

from registry.blobs.contract import ContentCheck, damaged, hex_of, missing
from registry.errors import DamagedBlob, Internal
from registry.names import sha256_digest


class MemoryBlobs:
    """A BlobStore over a dictionary."""

    def __init__(self) -> None:
        self._stored: dict[str, bytes] = {}

    def put_bytes(self, data: bytes) -> str:
        """Store bytes and return their digest."""
        digest = sha256_digest(data)
        self._stored[digest] = bytes(data)
        return digest

    def writer(self, digest: str, *, max_bytes: int, length: int | None = None) -> MemoryWriter:
        """A writer of the blob with this digest."""
        return MemoryWriter(self._stored, digest, ContentCheck(digest, max_bytes, length))

    def has(self, digest: str) -> bool:
        """Return True if the blob is stored, verified or not."""
        hex_of(digest)
        return digest in self._stored

    def is_whole(self, digest: str) -> bool:
        """Return True if the blob is stored and has its digest."""
        try:
            self.read(digest)
        except DamagedBlob:
            return False
        return True

    def damage(self, digest: str, data: bytes) -> None:
        """Have other bytes under a digest."""
        self._stored[digest] = data

    def size(self, digest: str) -> int:
        """Its size in bytes; raises DamagedBlob."""
        return len(self.read(digest))

    def size_unverified(self, digest: str) -> int:
        """Its size in bytes, verified all the same; raises DamagedBlob."""
        return self.size(digest)

    def read(self, digest: str) -> bytes:
        """All its bytes; raises DamagedBlob."""
        if not self.has(digest):
            raise missing(digest)
        data = self._stored[digest]
        if sha256_digest(data) != digest:
            raise damaged(digest, len(data))
        return data

    def open(self, digest: str) -> BinaryIO:
        """Its bytes as a seekable file; raises DamagedBlob."""
        return io.BytesIO(self.read(digest))

    def delete(self, digest: str) -> None:
        """Forget it."""
        hex_of(digest)
        self._stored.pop(digest, None)

    def delete_all(self, digests: Sequence[str]) -> None:
        """Forget each of them."""
        for digest in digests:
            self.delete(digest)

    def probe(self) -> str | None:
        """Return None: the store can always be used."""
        return None

    @property
    def is_failing(self) -> bool:
        """False."""
        return False

    def digests(self) -> Iterator[str]:
        """Every digest stored."""
        return iter(list(self._stored))


class MemoryWriter:
    """A BlobWriter into a dictionary of blobs."""

    def __init__(self, stored: dict[str, bytes], digest: str, check: ContentCheck) -> None:
        self._stored = stored
        self._digest = digest
        self._check = check
        self._data: bytearray | None = None

    def __enter__(self) -> Self:
        """Begin without bytes."""
        self._data = bytearray()
        return self

    def write(self, chunk: bytes) -> None:
        """Append; raises TooLarge beyond the limit."""
        data = self._open_data()
        self._check.add(chunk)
        data += chunk

    def commit(self) -> None:
        """Verify the bytes and store them; raises DigestMismatch."""
        data = self._open_data()
        self._check.verify()
        self._stored[self._digest] = bytes(data)
        self._data = None

    def __exit__(self, *_: object) -> None:
        """Drop what was not committed."""
        self._data = None

    def _open_data(self) -> bytearray:
        if self._data is None:
            raise Internal("a blob is written inside 'with' and before its commit")
        return self._data
