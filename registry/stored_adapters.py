"""Stored adapters as ones that can be loaded: their blobs are read when wanted, and checked against their digests."""

from __future__ import annotations

from registry.adapters.loadable import LoadableAdapter, Tensors
from registry.adapters.weights import adapter_digest, load_tensors
from registry.blobs import BlobStore
from registry.catalogue.rows import AdapterRow
from registry.errors import Internal


def loadable(row: AdapterRow, blobs: BlobStore) -> LoadableAdapter:
    """The adapter of a row; its `load` raises Internal where the stored bytes are not those of the digest."""

    def load() -> Tensors:
        tensors = load_tensors(blobs.read(row.weights_blob))
        if adapter_digest(row.base_fingerprint, row.config, tensors) != row.digest:
            raise Internal(f"The stored weights of {row.ref} are not those of its digest.")
        return tensors

    return LoadableAdapter(row.digest, row.config, load, row.size_bytes)
