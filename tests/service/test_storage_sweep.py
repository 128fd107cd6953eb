"""What a crash left: bytes without a row go at the next start, everything named stays."""

from __future__ import annotations

from registry.blobs import MemoryBlobs
from registry.catalogue import Database
from service.storage import migrate, sweep


def test_only_what_no_transaction_named_is_deleted(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'soup.db'}")
    migrate(database, backups=tmp_path / "backups")
    blobs = MemoryBlobs()
    named, orphan, waiting, ended = (blobs.put_bytes(text) for text in (b"named", b"orphan", b"waiting", b"ended"))
    with database.write() as catalogue:
        catalogue.blobs.seen(named, 5)
        for request in (waiting, ended):
            arguments = {"request": request, "scope": None, "namespace": "acme", "request_id": "r"}
            job = catalogue.jobs.enqueue("cook", arguments, namespace="acme", created_by="key-1")
        catalogue.jobs.cancel(job.id)
    assert sweep(database, blobs) == 2
    assert {digest for digest in (named, orphan, waiting, ended) if blobs.has(digest)} == {named, waiting}
    assert sweep(database, blobs) == 0
    database.close()
