"""Embeddings of samples: one row per sample and encoder, shared by every adapter with that sample."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import TypeAdapter
from sqlalchemy import select

from registry.catalogue.repository import Repository
from registry.catalogue.rows import EmbeddingRow
from registry.catalogue.tables import embeddings


class Samples(Repository[EmbeddingRow]):
    """Embeddings, by sample and encoder digest."""

    values = TypeAdapter(EmbeddingRow)

    def add_embedding(self, row: EmbeddingRow) -> None:
        """Record an embedding unless the sample has one by this encoder."""
        if self.embedding(row.sample_digest, row.encoder_digest) is None:
            self._insert(embeddings, **asdict(row))

    def forget_embedding(self, sample_digest: str, encoder_digest: str) -> None:
        """Delete the row of an embedding, so that it is computed again."""
        is_by_encoder = embeddings.c.encoder_digest == encoder_digest
        self._delete(embeddings, embeddings.c.sample_digest == sample_digest, is_by_encoder)

    def embedding(self, sample_digest: str, encoder_digest: str) -> EmbeddingRow | None:
        """The embedding of a sample by an encoder, None if there is none."""
        query = select(embeddings).where(embeddings.c.sample_digest == sample_digest)
        return self._first(query.where(embeddings.c.encoder_digest == encoder_digest))

    def embeddings(self, sample_digest: str) -> list[EmbeddingRow]:
        """Every embedding of a sample."""
        query = select(embeddings).where(embeddings.c.sample_digest == sample_digest)
        return self._all(query.order_by(embeddings.c.encoder_digest))
