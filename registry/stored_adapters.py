"""Stored adapters as ones that can be loaded: their blobs are read when wanted, and checked against their digests."""

from __future__ import annotations

from registry.adapters.loadable import LoadableAdapter, Stored, Tensors
from registry.adapters.weights import adapter_digest, load_tensors
from registry.blobs import BlobStore
from registry.catalogue.rows import AdapterRow
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
