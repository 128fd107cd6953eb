"""The embed verb: the texts of a pushed sample become vectors of every encoder of its base model.

Called by the embed job. What is embedded already is kept, so that a job that was interrupted goes on.
"""

from __future__ import annotations

from registry.catalogue.rows import AdapterRow
from registry.errors import Internal
from registry.files import decode_lines
from registry.progress import Progress
from registry.registry import Registry
from registry.samples import embed_texts, record_vectors


def embed(registry: Registry, adapter_id: int, *, progress: Progress) -> AdapterRow:
    """Embed an adapter's sample with every encoder, and give its row; `progress` may raise to end it.

    Raises Retired where it was purged.
    """
    with registry.database.read() as catalogue:
        row = catalogue.adapters.get(adapter_id)
        if row.sample is None:
            raise Internal(f"{row.ref} has no sample to embed")
        done = {known.encoder_digest: known for known in catalogue.samples.embeddings(row.sample.digest)}
    known = registry.bases[row.base_model].encoders()
    progress(0, len(known), f"embedding {row.ref}")
    texts = tuple(decode_lines(registry.blobs.read(row.sample.digest)))
    truncated: dict[str, int] = {known[digest].name: one.truncated for digest, one in done.items() if digest in known}
    for encoder in (encoder for digest, encoder in known.items() if digest not in done):
        vectors = embed_texts(texts, encoder, progress, scored=False)
        truncated[encoder.name] = vectors.truncated
        registry.blobs.put_bytes(vectors.data)
        with registry.database.write() as catalogue:
            catalogue.adapters.get(adapter_id)  # nothing is kept of a sample that was purged meanwhile
            record_vectors(registry, catalogue, row.sample.digest, vectors, encoder)
    with registry.database.write() as catalogue:
        return catalogue.adapters.set_sample_state(adapter_id, "ready", truncated=truncated)
