"""The embed verb: a pushed sample becomes vectors of every encoder. Called by the embed job."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from registry.blobs import BlobStore
from registry.catalogue.database import Database
from registry.catalogue.rows import AdapterRow
from registry.encoders.contract import Encoder
from registry.errors import Internal
from registry.files import decode_lines
from registry.samples import embed_texts, record_vectors


def embed(
    adapter_id: int,
    *,
    database: Database,
    blobs: BlobStore,
    encoders: Callable[[str], Mapping[str, Encoder]],
    progress: Callable[[int, int, str], None],
) -> AdapterRow:
    """Embed a pushed sample with every encoder; what is embedded already is kept. Called by the embed job."""
    with database.read() as catalogue:
        row = catalogue.adapters.get(adapter_id)
        if row.sample is None:
            raise Internal(f"{row.ref} has no sample to embed")
        done = {known.encoder_digest: known for known in catalogue.samples.embeddings(row.sample.digest)}
    known = encoders(row.base_model)
    progress(0, len(known), f"embedding {row.ref}")
    texts = tuple(decode_lines(blobs.read(row.sample.digest)))
    truncated: dict[str, int] = {known[digest].name: one.truncated for digest, one in done.items() if digest in known}
    for encoder in (encoder for digest, encoder in known.items() if digest not in done):
        vectors = embed_texts(texts, encoder, progress)
        truncated[encoder.name] = vectors.truncated
        blobs.put_bytes(vectors.data)
        with database.write() as catalogue:
            record_vectors(catalogue, row.sample.digest, vectors, encoder)
    with database.write() as catalogue:
        return catalogue.adapters.set_sample_state(adapter_id, "ready", truncated=truncated)
