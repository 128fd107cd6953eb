"""What a crash left: bytes without a row go at the next start, everything named stays."""

from __future__ import annotations

from registry.catalogue import Database
from service.storage import delete_ended_requests, delete_unnamed
from tests.registry.memory_blobs import MemoryBlobs


def stored(database: Database, blobs: MemoryBlobs) -> tuple[str, ...]:
    """Bytes that a row names, bytes that none does, and requests of a job that waits and of one that ended."""
    named, orphan, waiting, ended = (blobs.put_bytes(text) for text in (b"named", b"orphan", b"waiting", b"ended"))
    with database.write() as catalogue:
        catalogue.blobs.seen(named, 5)
        for request in (waiting, ended):
            arguments = {"request": request, "scope": None, "namespace": "acme", "request_id": "r"}
            job = catalogue.jobs.enqueue("cook", arguments, namespace="acme", created_by="key-1")
        catalogue.jobs.cancel(job.id)
    return named, orphan, waiting, ended


def test_the_only_owner_deletes_what_no_transaction_named(database):
    blobs = MemoryBlobs()
    named, _, waiting, _ = stored(database, blobs)
    assert delete_unnamed(database, blobs) == 2
    assert set(blobs.digests()) == {named, waiting}
    assert delete_unnamed(database, blobs) == 0


def test_who_shares_them_deletes_requests_that_ended_and_nothing_else(database):
    """Bytes without a row may be on their way to one in another process."""
    blobs = MemoryBlobs()
    named, orphan, waiting, _ = stored(database, blobs)
    assert delete_ended_requests(database, blobs) == 1
    assert set(blobs.digests()) == {named, orphan, waiting}
    assert delete_ended_requests(database, blobs) == 0
