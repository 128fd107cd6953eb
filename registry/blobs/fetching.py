"""Objects of a bucket as verified files of the cache, whichever key they lie under. Called by a bucket's stores."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import BinaryIO

from registry.blobs.bucket import Bucket, ObjectStamp
from registry.blobs.cache import BlobCache
from registry.blobs.contract import damaged, hex_of, missing

READS = 3
"""Times that an object is read whose bytes are not its digest's, before it is called damaged."""


def fetched(bucket: Bucket, cache: BlobCache, digest: str, key: str) -> tuple[BinaryIO, ObjectStamp]:
    """The file of an object with this digest, from the store, and what tells the object from the next one there.

    Raises DamagedBlob where there is none, or where the store gives other bytes each time.
    """
    size = 0
    for tries in range(READS):
        if tries:
            bucket.pause(tries)
        there = bucket.head(key)
        if there is None:
            raise missing(digest)
        size = there.size
        with cache.fetching(digest) as (path, file):
            sha = hashlib.sha256()
            for part in _parts(bucket, digest, key, size):
                sha.update(part)
                file.write(part)
            file.flush()
            if sha.hexdigest() == hex_of(digest):
                return cache.keep(path, digest) or _again(file), there
    raise damaged(digest, size)


def _parts(bucket: Bucket, digest: str, key: str, size: int) -> Iterator[bytes]:
    try:
        yield from bucket.parts(key, size)
    except FileNotFoundError:
        raise missing(digest) from None


def _again(file: BinaryIO) -> BinaryIO:
    """The same file from its beginning: its folder was deleted while it was written."""
    copy = os.fdopen(os.dup(file.fileno()), "rb")
    copy.seek(0)
    return copy
