"""Files in the blob store and their rows in the catalogue: recording digests, removing unreferenced files.

Called by verbs and routes. `record_bytes` runs in the transaction that refers to stored bytes, `remove_files` after one
that deleted rows. Both hold the write lock, so that no file is removed that a push is about to refer to.
"""

from __future__ import annotations

from datetime import datetime

from registry.catalogue.database import Catalogue
from registry.context import Registry

BATCH = 100
"""Files removed in one transaction: a few requests to a bucket, between which others can write."""


def record_bytes(registry: Registry, catalogue: Catalogue, digest: str, data: bytes) -> None:
    """Record stored bytes in this transaction; stores them again if a collection has removed them in between."""
    catalogue.blobs.record(digest, len(data))
    if not registry.blobs.has(digest):
        registry.blobs.put_bytes(data)


def remove_files(registry: Registry, moment: datetime) -> int:
    """Remove the files of blobs whose removal is due by `moment`; returns their number.

    Raises Unavailable or Busy if the store or the database cannot be used; the next call removes the rest.
    """
    count = 0
    while True:
        with registry.database.write() as catalogue:
            due = catalogue.removals.due(moment, limit=BATCH)
            registry.blobs.delete_all(due)
            catalogue.removals.record_removed(due)
        count += len(due)
        if len(due) < BATCH:
            return count
