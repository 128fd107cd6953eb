"""Where blobs are kept, as a value that travels to other processes, and the store that it says."""

from __future__ import annotations

from pathlib import Path

from registry.blobs.contract import ServerBlobs
from registry.blobs.local import LocalBlobs
from registry.spec import Frozen


class BlobPlace(Frozen):
    """A folder of blobs; or with `url` a bucket, whose `folder` on this machine holds what is not whole yet.

    `cache` is the folder of the objects that were fetched, `cache_bytes` the most it holds; `seconds` is how long the
    bucket is tried again.
    """

    folder: Path
    url: str | None = None
    cache: Path | None = None
    cache_bytes: int = 2**30
    seconds: float = 20.0


def open_blobs(place: BlobPlace, *, make: bool = True) -> ServerBlobs:
    """The store of a place; the folder is made if need be, not where `make` is False: then it is another process's.

    Raises OSError for the folder, Unavailable for a URL that the library of object stores does not take.
    """
    local = LocalBlobs(place.folder, make=make)
    if place.url is None:
        return local
    from registry.blobs.bucket import Bucket  # the library is imported by those who have a bucket
    from registry.blobs.cache import BlobCache
    from registry.blobs.objects import ObjectBlobs

    cache = BlobCache(place.cache or place.folder / "cache", place.cache_bytes)
    return ObjectBlobs(Bucket(place.url, seconds=place.seconds), cache=cache, staging=local)
