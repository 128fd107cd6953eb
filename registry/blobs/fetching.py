"""Download of a bucket's objects into the cache, verified on the way. Called by `objects` and `object_uploads`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import BinaryIO

from registry.blobs.bucket import Bucket, ObjectStamp
from registry.blobs.cache import BlobCache
from registry.blobs.contract import damaged, hex_of, missing

MAX_READS = 3
"""Reads of an object before it is called damaged."""


def fetch(bucket: Bucket, cache: BlobCache, digest: str, key: str) -> tuple[BinaryIO, ObjectStamp]:
    """Download the object with this digest; returns its file, and the stamp of the object.

    Raises DamagedBlob if the object is missing, or if the bytes of every read have another digest.
    """
    size = 0
    for attempt in range(MAX_READS):
        if attempt:
            bucket.pause(attempt)
        stamp = bucket.head(key)
        if stamp is None:
            raise missing(digest)
        size = stamp.size
        with cache.temporary_file(digest) as (path, file):
            sha256 = hashlib.sha256()
            for chunk in _read_chunks(bucket, digest, key, size):
                sha256.update(chunk)
                file.write(chunk)
            file.flush()
            if sha256.hexdigest() == hex_of(digest):
                return cache.keep(path, digest) or _reopen(file), stamp
    raise damaged(digest, size)


def _read_chunks(bucket: Bucket, digest: str, key: str, size: int) -> Iterator[bytes]:
    try:
        yield from bucket.read_chunks(key, size)
    except FileNotFoundError:
        raise missing(digest) from None


def _reopen(file: BinaryIO) -> BinaryIO:
    """A second file object for an open file, from its beginning; its folder was deleted meanwhile."""
    copy = os.fdopen(os.dup(file.fileno()), "rb")
    copy.seek(0)
    return copy
