"""Embeddings of samples, one row per sample and encoder, and statistics of adapters on their samples."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, exists, select

from registry.catalogue.repository import Repository, seen_by
from registry.catalogue.rows import EmbeddingRow, Namespaces, StatisticRow
from registry.catalogue.tables import adapters, embeddings, statistics
from registry.spec import SampleReport, StatisticKind


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

    def blobs(self, sample: SampleReport | None) -> set[str]:
        """Blobs of the text of an adapter's sample, if it has that, and of its vectors."""
        if sample is None:
            return set()
        text = {sample.digest} if sample.has_text else set()
        return text | {embedding.blob_digest for embedding in self.embeddings(sample.digest)}


class Statistics(Repository[StatisticRow]):
    """Statistic rows, by adapter, sample and kind; recipes name one by its blob."""

    values = TypeAdapter(StatisticRow)

    def find(self, adapter_digest: str, sample_digest: str, kind: StatisticKind) -> StatisticRow | None:
        """The statistic of an adapter on a sample, None if it was not computed."""
        return self._first(select(statistics).where(*_has_key(adapter_digest, sample_digest, kind)))

    def put(self, row: StatisticRow) -> None:
        """Store or replace the statistic of an adapter on a sample."""
        self._delete(statistics, *_has_key(row.adapter_digest, row.sample_digest, row.kind))
        self._insert(statistics, **asdict(row))

    def find_by_blob(self, visible: Namespaces, adapter_digest: str, blob: str) -> StatisticRow | None:
        """The statistic of an adapter in `blob`, if a version in a visible namespace has this adapter and sample."""
        is_visible = exists().where(
            adapters.c.digest == statistics.c.adapter_digest,
            adapters.c.sample_digest == statistics.c.sample_digest,
            seen_by(visible, adapters.c.namespace),
        )
        query = select(statistics).where(
            statistics.c.adapter_digest == adapter_digest, statistics.c.blob_digest == blob, is_visible
        )
        return self._first(query.limit(1))

    def missing_blobs(self, blobs: Collection[str]) -> set[str]:
        """The blobs that no statistic refers to."""
        query = select(statistics.c.blob_digest).where(statistics.c.blob_digest.in_(sorted(blobs)))
        return set(blobs) - set(self._connection.scalars(query))


def _has_key(adapter_digest: str, sample_digest: str, kind: StatisticKind) -> list[ColumnElement[bool]]:
    return [
        statistics.c.adapter_digest == adapter_digest,
        statistics.c.sample_digest == sample_digest,
        statistics.c.kind == kind,
    ]
