"""Files in the blob store and their rows in the catalogue: recording digests, removing unreferenced files.

Called by verbs and routes. `record_bytes` runs in the transaction that refers to stored bytes, `remove_files` after one
that deleted rows. Both hold the write lock, so that no file is removed that a push is about to refer to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from registry.catalogue.database import Catalogue
from registry.context import Registry
from registry.errors import Busy, Unavailable

BATCH = 100
"""Files removed in one transaction: a few requests to a bucket, between which others can write."""
LONGEST_USE = timedelta(days=1)
"""After this a collection deletes a temporary file: trainings on a sample take minutes, on a slow machine hours."""


def record_bytes(registry: Registry, catalogue: Catalogue, digest: str, data: bytes) -> None:
    """Record stored bytes in this transaction; stores them again if a collection has removed them in between."""
    catalogue.blobs.record(digest, len(data))
    if not registry.blobs.has(digest):
        registry.blobs.put_bytes(data)


@contextmanager
def deleted_unless_recorded(registry: Registry, digests: Iterable[str]) -> Iterator[None]:
    """Context around the transaction that records stored files: if it fails, those without a row are deleted.

    Else what a quota refuses would stay, and no quota would count it.
    """
    try:
        yield
    except BaseException:
        delete_unrecorded(registry, digests)
        raise


def delete_unrecorded(registry: Registry, digests: Iterable[str]) -> None:
    """Delete the given files that have no row; the transaction keeps others from adding one meanwhile.

    Files whose removal is scheduled, and copies that were set aside, stay: another database may name them. If the store
    or the database cannot be used, all stay, and a later start sets them aside.
    """
    with suppress(Busy, Unavailable), registry.database.write() as catalogue:
        scheduled = catalogue.removals.pending()
        unrecorded = [
            digest for digest in digests if digest not in scheduled and catalogue.blobs.seen_at(digest) is None
        ]
        registry.blobs.delete_all(unrecorded, set_aside=False, confirm=catalogue.removals.check_session)


@contextmanager
def temporary_file(registry: Registry, digest: str) -> Iterator[None]:
    """Context around the use of a stored file without a row, which is deleted at the end.

    Its removal is scheduled before the use, so that a collection deletes it if this process is killed meanwhile. If the
    database cannot be used, it is only deleted at the end.
    """
    try:
        with suppress(Busy, Unavailable), registry.database.write() as catalogue:
            catalogue.removals.forget([digest], datetime.now(UTC) + LONGEST_USE)
        yield
    finally:
        registry.blobs.delete(digest)
        with suppress(Busy, Unavailable), registry.database.write() as catalogue:
            catalogue.removals.record_removed([digest])


def remove_files(registry: Registry, moment: datetime) -> int:
    """Remove the files of blobs whose removal is due by `moment`; returns their number.

    Raises Unavailable or Busy if the store or the database cannot be used; the next call removes the rest.
    """
    count = 0
    while True:
        with registry.database.write() as catalogue:
            due = catalogue.removals.due(moment, limit=BATCH)
            registry.blobs.delete_all(due, confirm=catalogue.removals.check_session)
            catalogue.removals.record_removed(due)
        count += len(due)
        if len(due) < BATCH:
            return count
