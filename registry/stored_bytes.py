"""Bytes on their way between the blob store and the rows that name them, in either direction.

Called by verbs and routes: `record_bytes` in the transaction that names what was stored a moment ago, `remove_files`
after one that took rows away. No file goes that a push is about to name: while it goes its digest cannot be named.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from registry.catalogue.database import Catalogue
from registry.errors import Busy
from registry.registry import Registry

AT_ONCE = 100
"""Files that are removed together: a store does that in one request."""
GOING = timedelta(minutes=45)
"""How long a digest cannot be named whose file was about to be removed by a process that has died since.

More than the wait below and three calls on a store take, of which each is over in ten minutes at most.
"""
MOST_WAITED = 300.0
"""Seconds after which a removal that has not begun is left to the next: what is left of `GOING` has to be enough."""


def record_bytes(registry: Registry, catalogue: Catalogue, digest: str, data: bytes) -> None:
    """Name stored bytes in this transaction; they are stored again where a collection has removed them in between."""
    catalogue.blobs.seen(digest, len(data))
    if not registry.blobs.has(digest):
        registry.blobs.put_bytes(data)


def remove_files(registry: Registry, moment: datetime) -> int:
    """Remove the files of blobs that are noted to go by then, and that no transaction named since; how many.

    The turn to write is taken for the rows alone: a store may be slow. Raises Unavailable or Busy where the store or
    the database cannot be used; the rest then goes at a later call, what was begun not before `GOING` is over.
    """
    count = 0
    while True:
        begun, until = time.monotonic(), datetime.now(UTC) + GOING
        with registry.database.write() as catalogue:
            due = catalogue.removals.take_due(moment, limit=AT_ONCE, until=until)
        if time.monotonic() - begun > MOST_WAITED:
            raise Busy("Files are not removed now: the database was slow to say which.", retry_after=60)
        if due:
            registry.blobs.delete_all(due)
            with registry.database.write() as catalogue:
                count += catalogue.removals.removed(due, until=until)
        if len(due) < AT_ONCE:
            return count
