"""The store that a BlobPlace names."""

from __future__ import annotations

from registry.blobs.bucket import Bucket
from registry.blobs.cache import BlobCache
from registry.blobs.contract import ServerBlobs
from registry.blobs.local import LocalBlobs
from registry.blobs.objects import ObjectBlobs
from registry.spec import BlobPlace


def open_blobs(place: BlobPlace, *, make: bool = True) -> ServerBlobs:
    """The store of a place; the folder is made if need be, not where `make` is False: then it is another process's.

    Raises OSError for the folder, Unavailable for a URL that the library of object stores does not take.
    """
    local = LocalBlobs(place.folder, make=make)
    if place.url is None:
        return local
    cache = BlobCache(place.cache or place.folder / "cache", place.cache_bytes)
    return ObjectBlobs(Bucket(place.url, seconds=place.seconds), cache=cache, staging=local)
