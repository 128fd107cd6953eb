"""Content-addressed bytes: a store is named by digests and nothing else, and what it acknowledged is durable."""

from registry.blobs.aside import Aside
from registry.blobs.contract import BlobStore, BlobWriter
from registry.blobs.local import LocalBlobs
from registry.blobs.unfinished import Unfinished, UnfinishedFile

__all__ = ["Aside", "BlobStore", "BlobWriter", "LocalBlobs", "Unfinished", "UnfinishedFile"]
