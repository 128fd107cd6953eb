"""Files between blob store and catalogue: adapters loaded from them, digests recorded, unnamed files removed.

Called by verbs and routes. `record_bytes` runs in the transaction that names what was stored a moment ago,
`remove_files` after one that deleted rows. Both hold the write lock: no file goes that a push is about to name.
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


def loadable(row: AdapterRow, blobs: BlobStore) -> LoadableAdapter:
    """The adapter of a row; its `load` raises Internal where the stored bytes are not those of the digest."""
    stored = Stored(row.weights_blob, row.base_fingerprint)
    return from_store(row.digest, row.config, stored, blobs, named=row.ref, size_bytes=row.size_bytes)


def from_store(
    digest: str, config: AdapterConfig, stored: Stored, blobs: BlobStore, *, named: str, size_bytes: int
) -> LoadableAdapter:
    """An adapter by what is known of it without a database; otherwise as `loadable`."""

    def load() -> Tensors:
        tensors = load_tensors(blobs.read(stored.blob))
        if adapter_digest(stored.fingerprint, config, tensors) != digest:
            raise Internal(f"The stored weights of {named} are not those of its digest.")
        return tensors

    return LoadableAdapter(digest, config, load, size_bytes, stored)


AT_ONCE = 100
"""Files that are removed in one transaction, which a bucket does in a few requests: others write in between."""


def record_bytes(registry: Registry, catalogue: Catalogue, digest: str, data: bytes) -> None:
    """Name stored bytes in this transaction; they are stored again where a collection has removed them in between."""
    catalogue.blobs.record(digest, len(data))
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
            catalogue.removals.record_removed(due)
        count += len(due)
        if len(due) < AT_ONCE:
            return count
