"""Content-addressed bytes: stores of blobs by digest, which are durable once acknowledged, and unfinished uploads.

A stored file or object holds the bytes of its digest and nothing else: clients with signed URLs read it directly.
"""

from __future__ import annotations

from registry.blobs.bucket import Bucket
from registry.blobs.cache import BlobCache
from registry.blobs.contract import (
    AcknowledgedUpload,
    BlobStore,
    BlobWriter,
    OpenUpload,
    ServerBlobs,
    SetAsideBlobs,
    UploadStore,
)
from registry.blobs.file_uploads import FileUpload, FileUploads
from registry.blobs.local import LocalBlobs
from registry.blobs.objects import ObjectBlobs
from registry.spec import BlobPlace

__all__ = [
    "AcknowledgedUpload",
    "BlobStore",
    "BlobWriter",
    "FileUpload",
    "FileUploads",
    "LocalBlobs",
    "OpenUpload",
    "ServerBlobs",
    "SetAsideBlobs",
    "UploadStore",
    "open_blobs",
]


def open_blobs(place: BlobPlace, *, make: bool = True) -> ServerBlobs:
    """The store at a place; creates the folder unless `make` is False, for a folder of another process.

    Raises OSError for the folder, Unavailable for a URL that the library of object stores does not accept.
    """
    local = LocalBlobs(place.folder, make=make)
    if place.url is None:
        return local
    cache = BlobCache(place.cache or place.folder / "cache", place.cache_bytes)
    return ObjectBlobs(Bucket(place.url, seconds=place.seconds), cache=cache, staging=local)
