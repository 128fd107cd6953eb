"""Files between blob store and catalogue: loading adapters, recording digests, removing unreferenced files.

Called by verbs and routes. `record_bytes` runs in the transaction that refers to stored bytes, `remove_files` after one
that deleted rows. Both hold the write lock, so that no file is removed that a push is about to refer to.
"""

from __future__ import annotations

from datetime import datetime

from registry.adapters.loadable import LoadableAdapter, Stored, Tensors
from registry.adapters.weights import adapter_digest, load_tensors
from registry.blobs import BlobStore
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow
from registry.context import Registry
from registry.errors import Internal
from registry.spec import AdapterConfig

BATCH = 100
"""Files removed in one transaction: a few requests to a bucket, between which others can write."""


def loadable(row: AdapterRow, blobs: BlobStore) -> LoadableAdapter:
    """The adapter of a row; its `load` raises Internal if the stored weights have another digest."""
    stored = Stored(row.weights_blob, row.base_fingerprint)
    return from_store(row.digest, row.config, stored, blobs, named=row.ref, size_bytes=row.size_bytes)


def from_store(
    digest: str, config: AdapterConfig, stored: Stored, blobs: BlobStore, *, named: str, size_bytes: int
) -> LoadableAdapter:
    """The adapter with this digest, without a database; its `load` raises Internal like that of `loadable`."""

    def load() -> Tensors:
        tensors = load_tensors(blobs.read(stored.blob))
        if adapter_digest(stored.fingerprint, config, tensors) != digest:
            raise Internal(f"The stored weights of {named} are not those of its digest.")
        return tensors

    return LoadableAdapter(digest, config, load, size_bytes, stored)


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
