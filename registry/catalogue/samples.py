"""Embeddings of samples: one row per sample and encoder, shared by every adapter with that sample."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, insert, select

from registry.catalogue.rows import EmbeddingRow
from registry.catalogue.tables import embeddings


class Samples:
    """Embeddings, by sample and encoder digest."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add_embedding(self, row: EmbeddingRow) -> None:
        """Record an embedding; the same sample and encoder again changes nothing."""
        if self.embedding(row.sample_digest, row.encoder_digest) is None:
            self._connection.execute(insert(embeddings).values(**asdict(row)))

    def embedding(self, sample_digest: str, encoder_digest: str) -> EmbeddingRow | None:
        """The embedding of a sample by one encoder."""
        found = self._connection.execute(
            select(embeddings).where(
                embeddings.c.sample_digest == sample_digest, embeddings.c.encoder_digest == encoder_digest
            )
        ).mappings()
        row = found.one_or_none()
        return None if row is None else _row(row)

    def embeddings(self, sample_digest: str) -> list[EmbeddingRow]:
        """Every embedding of a sample."""
        query = select(embeddings).where(embeddings.c.sample_digest == sample_digest)
        ordered = query.order_by(embeddings.c.encoder_digest)
        return [_row(row) for row in self._connection.execute(ordered).mappings()]


def _row(row: Any) -> EmbeddingRow:
    return EmbeddingRow(**row)
