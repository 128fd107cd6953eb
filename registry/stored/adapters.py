"""Stored adapters as ones to load: the blob is read when the tensors are needed, and checked against the digest.

Imported by inference replicas, which have no database: catalogue and blob store are imported for type checkers alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.adapters.loadable import LoadableAdapter, Stored, Tensors
from registry.adapters.weights import adapter_digest, load_tensors
from registry.errors import Internal
from registry.spec import AdapterConfig

if TYPE_CHECKING:
    from registry.blobs import BlobStore
    from registry.catalogue.rows import AdapterRow


def loadable(row: AdapterRow, blobs: BlobStore) -> LoadableAdapter:
    """The adapter of a row; its `load` raises Internal if the stored weights have another digest."""
    stored = Stored(row.weights_blob, row.base_fingerprint)
    return from_store(row.digest, row.config, stored, blobs, named=row.ref)


def from_store(digest: str, config: AdapterConfig, stored: Stored, blobs: BlobStore, *, named: str) -> LoadableAdapter:
    """The adapter with this digest, without a database; its `load` raises Internal like that of `loadable`."""

    def load() -> Tensors:
        tensors = load_tensors(blobs.read(stored.blob))
        if adapter_digest(stored.fingerprint, config, tensors) != digest:
            raise Internal(f"The stored weights of {named} are not those of its digest.")
        return tensors

    return LoadableAdapter(digest, config, load, stored=stored)
