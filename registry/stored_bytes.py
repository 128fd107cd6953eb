"""Bytes on their way between the blob store and the rows that name them, in either direction.

Called by verbs and routes: `record_bytes` in the transaction that names what was stored a moment ago, `remove_files`
after one that took rows away. Both work in the turn to write, so that no file goes that a push is about to name.
"""

from __future__ import annotations

import logging
from datetime import datetime

from registry.catalogue.database import Catalogue
from registry.errors import Unavailable
from registry.registry import Registry

log = logging.getLogger("soup.collect")

AT_ONCE = 50
"""Files that are removed in one transaction, which a bucket does in a few requests: others write in between."""
FEWEST = 5
"""The same where the store was too slow for that."""
SLOW_TURNS = 10
"""Transactions of the fewest that one removal makes: with a slow store each keeps others waiting for a while."""


def record_bytes(registry: Registry, catalogue: Catalogue, digest: str, data: bytes) -> None:
    """Name stored bytes in this transaction; they are stored again where a collection has removed them in between."""
    catalogue.blobs.seen(digest, len(data))
    if not registry.blobs.has(digest):
        registry.blobs.put_bytes(data)


def remove_files(registry: Registry, moment: datetime) -> int:
    """Remove the files of blobs that are noted to go by then, and that no transaction named since; how many.

    A store that is too slow for AT_ONCE of them is given FEWEST, SLOW_TURNS times; the rest goes at the next call, as
    where Unavailable or Busy is raised, because the store or the database cannot be used.
    """
    count = 0
    while True:
        try:
            gone = _removed(registry, moment, AT_ONCE)
        except Unavailable:
            break
        count += gone
        if gone < AT_ONCE:
            return count
    for _ in range(SLOW_TURNS):
        gone = _removed(registry, moment, FEWEST)
        count += gone
        if gone < FEWEST:
            return count
    log.warning(
        "the store of the blobs is slow: %d files were removed, and the others go with the next collection", count
    )
    return count


def _removed(registry: Registry, moment: datetime, most: int) -> int:
    """Remove at most so many of these files in one transaction; how many. Raises as `remove_files` says."""
    with registry.database.write() as catalogue:
        due = catalogue.removals.due(moment, limit=most)
        registry.blobs.delete_all(due, briefly=True)
        catalogue.removals.removed(due)
    return len(due)
