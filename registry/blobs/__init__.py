"""Content-addressed bytes: a store is named by digests and nothing else, and what it acknowledged is durable."""

from registry.blobs.contract import BlobStore, BlobWriter
from registry.blobs.local import LocalBlobs
from registry.blobs.memory import MemoryBlobs

STORES: dict[str, type[LocalBlobs] | type[MemoryBlobs]] = {"local": LocalBlobs, "memory": MemoryBlobs}

__all__ = ["STORES", "BlobStore", "BlobWriter", "LocalBlobs", "MemoryBlobs"]
