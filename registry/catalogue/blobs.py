"""Rows of stored blobs, and of the namespaces that may see them; the bytes are in the blob store."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import and_, exists, func, literal, or_, select

from registry.catalogue.repository import TableGateway, now
from registry.catalogue.rows import Namespaces
from registry.catalogue.tables import (
    HAS_TEXT,
    LIVE,
    adapters,
    blob_grants,
    blob_removals,
    blob_uploads,
    blobs,
    embeddings,
    recipes,
    selectors,
    statistics,
)


class Blobs(TableGateway):
    """Rows of blobs, of the namespaces that see them, and of the keys that uploaded them."""

    def record(self, digest: str, size: int) -> None:
        """Record that a blob is stored and in use now, in the transaction that refers to it; cancels its removal."""
        self._delete(blob_removals, blob_removals.c.digest == digest)
        if self._update(blobs, blobs.c.digest == digest, seen_at=now()) == 0:
            self._insert(blobs, digest=digest, size=size, seen_at=now())

    def seen_at(self, digest: str) -> datetime | None:
        """When a blob was last stored or requested; None if it has no row."""
        return self._connection.scalars(select(blobs.c.seen_at).where(blobs.c.digest == digest)).first()

    def total(self) -> tuple[int, int]:
        """The number of blobs with a row, and their bytes together."""
        query = select(func.count(), func.coalesce(func.sum(blobs.c.size), 0)).select_from(blobs)
        count, size = self._connection.execute(query).one()
        return int(count), int(size)

    def digests(self) -> set[str]:
        """Digests of all blobs with a row."""
        return set(self._connection.execute(select(blobs.c.digest)).scalars())

    def sizes(self) -> dict[str, int]:
        """Bytes of all blobs with a row, by digest."""
        return {row.digest: row.size for row in self._connection.execute(select(blobs.c.digest, blobs.c.size))}

    def references(self, digest: str) -> list[str]:
        """Descriptions of adapters, selectors and recipes that refer to a blob; else of the uploading namespaces."""
        version = (adapters.c.namespace, adapters.c.name, adapters.c.version)
        newest = (adapters.c.namespace, adapters.c.name, adapters.c.version.desc())
        weights = select(*version).where(adapters.c.weights_blob == digest)
        sample = select(*version).where(adapters.c.sample_digest == digest, HAS_TEXT)
        embedded = select(*version).join(embeddings, embeddings.c.sample_digest == adapters.c.sample_digest)
        has_statistic = and_(
            statistics.c.adapter_digest == adapters.c.digest, statistics.c.sample_digest == adapters.c.sample_digest
        )
        measured = select(*version).join(statistics, has_statistic)
        queries = {
            "weights": weights,
            "sample": sample,
            "embeddings": embedded.where(embeddings.c.blob_digest == digest).distinct(),
            "statistic": measured.where(statistics.c.blob_digest == digest).distinct(),
        }
        references = [
            f"{role} of {row.namespace}/{row.name}@{row.version}"
            for role, query in queries.items()
            for row in self._connection.execute(query.order_by(*newest))
        ]
        states = select(selectors.c.id).where(selectors.c.state_blob == digest).order_by(selectors.c.sequence)
        cooked = select(recipes.c.digest).where(recipes.c.weights_blob == digest).order_by(recipes.c.digest)
        references += [f"selector {id}" for id in self._connection.execute(states).scalars()]
        references += [f"recipe {recipe}" for recipe in self._connection.execute(cooked).scalars()]
        if references:
            return references
        granted = select(blob_grants.c.namespace).where(blob_grants.c.digest == digest)
        names = self._connection.execute(granted.order_by(blob_grants.c.namespace)).scalars()
        return [f"uploaded by namespace {name}" for name in names]

    def grant(self, namespace: str, digest: str) -> None:
        """Let a namespace see a blob that it uploaded."""
        if not self._exists(blob_grants.c.namespace == namespace, blob_grants.c.digest == digest):
            self._insert(blob_grants, namespace=namespace, digest=digest)

    def record_upload(self, key_id: str, digest: str) -> None:
        """Record that a key uploaded a blob, which counts for the key's quota."""
        if not self._exists(blob_uploads.c.key_id == key_id, blob_uploads.c.digest == digest):
            self._insert(blob_uploads, key_id=key_id, digest=digest)

    def is_visible(self, visible: Namespaces, digest: str) -> bool:
        """Return True if a visible namespace uploaded the blob, or has an adapter whose weights or sample it is.

        A sample is visible through live adapters that have its text, not through soups cooked for it; weights also
        through retired ones, since soups are rebuilt of them.
        """
        if visible is None:
            return self._exists(blobs.c.digest == digest)
        granted = exists().where(blob_grants.c.digest == digest, blob_grants.c.namespace.in_(visible))
        owned = exists().where(
            or_(
                adapters.c.weights_blob == digest,
                and_(adapters.c.sample_digest == digest, HAS_TEXT, LIVE),
            ),
            adapters.c.namespace.in_(visible),
        )
        return bool(self._connection.execute(select(literal(1)).where(or_(granted, owned))).first())
