"""Content-addressed bytes: a store is named by digests and nothing else, and what it acknowledged is durable."""

from __future__ import annotations

from registry.blobs.bucket import Bucket
from registry.blobs.cache import BlobCache
from registry.blobs.contract import (
    BlobStore,
    BlobWriter,
    LostPartError,
    OpenUpload,
    ServerBlobs,
    SetAside,
    UploadStore,
)
from registry.blobs.local import LocalBlobs
from registry.blobs.objects import ObjectBlobs
from registry.blobs.unfinished import Unfinished, UnfinishedFile
from registry.spec import BlobPlace

__all__ = [
    "BlobStore",
    "BlobWriter",
    "LocalBlobs",
    "LostPartError",
    "OpenUpload",
    "ServerBlobs",
    "SetAside",
    "Unfinished",
    "UnfinishedFile",
    "UploadStore",
    "open_blobs",
]


def open_blobs(place: BlobPlace, *, make: bool = True) -> ServerBlobs:
    """The store of a place; the folder is made if need be, not where `make` is False: then it is another process's.

    Raises OSError for the folder, Unavailable for a URL that the library of object stores does not take.
    """
    local = LocalBlobs(place.folder, make=make)
    if place.url is None:
        return local
    cache = BlobCache(place.cache or place.folder / "cache", place.cache_bytes)
    return ObjectBlobs(Bucket(place.url, seconds=place.seconds), cache=cache, staging=local)
