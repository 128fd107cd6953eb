"""Blobs in a dictionary, for tests that need no durability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from registry.blobs.contract import damaged, hex_of, missing
from registry.errors import DamagedBlob
from registry.names import sha256_digest


class MemoryBlobs:
    """A BlobStore over a dictionary, without uploads."""

    def __init__(self) -> None:
        self._stored: dict[str, bytes] = {}

    def put_bytes(self, data: bytes) -> str:
        """Store bytes and return their digest."""
        digest = sha256_digest(data)
        self._stored[digest] = bytes(data)
        return digest

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

    def delete(self, digest: str) -> None:
        """Forget it."""
        hex_of(digest)
        self._stored.pop(digest, None)

    def delete_all(
        self, digests: Sequence[str], *, set_aside: bool = True, confirm: Callable[[], None] | None = None
    ) -> None:
        """Forget each of them."""
        if confirm is not None:
            confirm()
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
