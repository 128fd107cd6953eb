"""The collect verb: what nobody has used or named for some time goes, in steps that can be taken back until the last.

Called by the server's upkeep. Unnamed soups that nobody uses are retired; those that have been retired for the grace
period are removed, as are selectors that no longer serve and blobs that nothing is made of. Files go some time after
their rows: until then storing the same bytes again brings them back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from registry.catalogue.database import Catalogue
from registry.pools import enqueue_refits
from registry.progress import Progress, silent
from registry.registry import Registry
from registry.stored_bytes import remove_files

log = logging.getLogger("soup.collect")

HELD = timedelta(days=1)
"""How long a file is kept after its row, and no longer than the grace period."""
AT_ONCE = 200
"""Rows that go in one transaction: others write in between."""
BY = "collection"
"""Who the audit and jobs say it was."""


@dataclass(frozen=True)
class Collected:
    """How many unnamed soups were retired and removed, selectors and blobs removed, files removed, and their bytes."""

    retired: int = 0
    soups: int = 0
    selectors: int = 0
    blobs: int = 0
    bytes: int = 0
    files: int = 0


def collect(
    registry: Registry, moment: datetime, *, used: Callable[[Catalogue], set[str]], progress: Progress = silent
) -> Collected:
    """Take away what is due at `moment`; `used` gives blobs that jobs still need. `progress` may raise to end it.

    Raises Busy or Unavailable; what was done by then stays done.
    """
    grace = registry.retention.grace
    retired = _retire_unused(registry, moment, progress)
    soups = selectors = blobs = size = 0
    if grace is not None:
        before = moment - grace
        soups = _remove_retired(registry, before, progress)
        with registry.database.write() as catalogue:
            selectors = catalogue.removals.drop_selectors(before)
            catalogue.removals.drop_embeddings()
        blobs, size = _forget_unseen(registry, before, moment + min(grace, HELD), used, progress)
    done = Collected(retired, soups, selectors, blobs, size, remove_files(registry, moment))
    if done != Collected():
        log.info(
            "collected: %d unnamed soups retired and %d removed, %d selectors and %d blobs (%d bytes) removed, whose "
            "files go later; %d files removed", done.retired, done.soups, done.selectors, done.blobs, done.bytes,
            done.files,
        )  # fmt: skip
    return done


def _retire_unused(registry: Registry, moment: datetime, progress: Progress) -> int:
    """Retire unnamed soups that nobody used for as long as their namespace keeps them."""
    with registry.database.read() as catalogue:
        days = {name: catalogue.namespaces.get(name).unnamed_soup_days for name in catalogue.removals.soup_namespaces()}
    count = 0
    for namespace, own in days.items():
        keep = registry.retention.unnamed_soup_days if own is None else own
        while keep:
            since = moment - timedelta(days=keep)
            progress(count, 0, "retiring unnamed soups")
            with registry.database.write() as catalogue:
                found = catalogue.removals.unused_soups(namespace, since, limit=AT_ONCE)
                for id in found:
                    row = catalogue.adapters.retire(id, at=moment)
                    enqueue_refits(catalogue, row, created_by=BY, refits=registry.refits)
                    _audit(catalogue, "adapter.expire", row.ref, digest=row.digest, days=keep)
            count += len(found)
            if len(found) < AT_ONCE:
                break
    return count


def _remove_retired(registry: Registry, before: datetime, progress: Progress) -> int:
    count = 0
    while True:
        progress(count, 0, "removing retired soups")
        with registry.database.write() as catalogue:
            found = catalogue.removals.retired_soups(before, limit=AT_ONCE)
            for id in found:
                row = catalogue.adapters.get(id)
                catalogue.removals.release(row.namespace, catalogue.removals.purge(row))
                _audit(catalogue, "adapter.collect", row.ref, digest=row.digest)
        count += len(found)
        if len(found) < AT_ONCE:
            return count


def _forget_unseen(
    registry: Registry, before: datetime, due_at: datetime, used: Callable[[Catalogue], set[str]], progress: Progress
) -> tuple[int, int]:
    """Take away the rows of blobs that nothing is made of, and no job needs; how many, and their bytes."""
    count = size = 0
    while True:
        progress(count, 0, "removing blobs")
        with registry.database.write() as catalogue:
            needed = used(catalogue)
            unseen = catalogue.removals.unseen(before, limit=AT_ONCE + len(needed))
            found = [digest for digest in unseen if digest not in needed]
            size += catalogue.removals.forget(found, due_at)
            if found:
                _audit(catalogue, "blob.collect", f"{len(found)} blobs", digests=found)
        count += len(found)
        if len(found) < AT_ONCE:
            return count, size


def _audit(catalogue: Catalogue, action: str, subject: str, **detail: object) -> None:
    catalogue.audit.record(action, subject, key_id=None, request_id=None, detail={"by": BY, **detail})
