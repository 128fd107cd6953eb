"""Bytes on their way between the blob store and the rows that name them, in either direction.

Called by verbs and routes: `record_bytes` in the transaction that names what was stored a moment ago, `remove_files`
after one that took rows away. Both work in the turn to write, so that no file goes that a push is about to name.
"""

from __future__ import annotations

from datetime import datetime

from registry.catalogue.database import Catalogue
from registry.registry import Registry

AT_ONCE = 100
"""Files that are removed in one transaction, which a bucket does in a few requests: others write in between."""


def record_bytes(registry: Registry, catalogue: Catalogue, digest: str, data: bytes) -> None:
    """Name stored bytes in this transaction; they are stored again where a collection has removed them in between."""
    catalogue.blobs.seen(digest, len(data))
    if not registry.blobs.has(digest):
        registry.blobs.put_bytes(data)


def remove_files(registry: Registry, moment: datetime) -> int:
    """Remove the files of blobs that are noted to go by then, and that no transaction named since; how many.

    Raises Unavailable or Busy where the store or the database cannot be used; the rest then goes at the next call.
    """
    count = 0
    while True:
        with registry.database.write() as catalogue:
            due = catalogue.removals.due(moment, limit=AT_ONCE)
            registry.blobs.delete_all(due)
            catalogue.removals.removed(due)
        count += len(due)
        if len(due) < AT_ONCE:
            return count
