"""Which blobs are stored and who may see them; the bytes live in the blob store."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, and_, delete, exists, func, insert, literal, or_, select, update

from registry.catalogue.repository import now
from registry.catalogue.rows import Namespaces
from registry.catalogue.tables import (
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


class Blobs:
    """Blob rows and grants."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def seen(self, digest: str, size: int) -> None:
        """Record that these bytes are stored; called in the transaction that names them. Their file stays, then."""
        self._connection.execute(delete(blob_removals).where(blob_removals.c.digest == digest))
        changed = self._connection.execute(update(blobs).where(blobs.c.digest == digest).values(seen_at=now()))
        if changed.rowcount == 0:
            self._connection.execute(insert(blobs).values(digest=digest, size=size, seen_at=now()))

    def seen_at(self, digest: str) -> datetime | None:
        """When a blob was last stored or asked for; None where no transaction named it."""
        return self._connection.scalars(select(blobs.c.seen_at).where(blobs.c.digest == digest)).first()

    def total(self) -> tuple[int, int]:
        """How many blobs a transaction named, and how many bytes they have."""
        query = select(func.count(), func.coalesce(func.sum(blobs.c.size), 0)).select_from(blobs)
        count, size = self._connection.execute(query).one()
        return int(count), int(size)

    def digests(self) -> set[str]:
        """Every blob that a transaction named."""
        return set(self._connection.execute(select(blobs.c.digest)).scalars())

    def sizes(self) -> dict[str, int]:
        """Every blob that a transaction named, and how many bytes it has."""
        return {row.digest: row.size for row in self._connection.execute(select(blobs.c.digest, blobs.c.size))}

    def named_by(self, digest: str) -> list[str]:
        """What needs a blob, in words: adapters, soups that may be cooked again, selectors; else who uploaded it."""
        version = (adapters.c.namespace, adapters.c.name, adapters.c.version)
        newest = (adapters.c.namespace, adapters.c.name, adapters.c.version.desc())
        weights = select(*version).where(adapters.c.weights_blob == digest)
        sample = select(*version).where(adapters.c.sample_digest == digest)
        embedded = select(*version).join(embeddings, embeddings.c.sample_digest == adapters.c.sample_digest)
        of_both = and_(
            statistics.c.adapter_digest == adapters.c.digest, statistics.c.sample_digest == adapters.c.sample_digest
        )
        measured = select(*version).join(statistics, of_both)
        found = [
            f"{what} of {row.namespace}/{row.name}@{row.version}"
            for what, query in (
                ("weights", weights),
                ("sample", sample),
                ("embeddings", embedded.where(embeddings.c.blob_digest == digest).distinct()),
                ("statistic", measured.where(statistics.c.blob_digest == digest).distinct()),
            )
            for row in self._connection.execute(query.order_by(*newest))
        ]
        states = select(selectors.c.id).where(selectors.c.state_blob == digest).order_by(selectors.c.sequence)
        cooked = select(recipes.c.digest).where(recipes.c.weights_blob == digest).order_by(recipes.c.digest)
        found += [f"selector {id}" for id in self._connection.execute(states).scalars()]
        found += [f"recipe {recipe}" for recipe in self._connection.execute(cooked).scalars()]
        if found:
            return found
        granted = select(blob_grants.c.namespace).where(blob_grants.c.digest == digest)
        names = self._connection.execute(granted.order_by(blob_grants.c.namespace)).scalars()
        return [f"uploaded by namespace {name}" for name in names]

    def grant(self, namespace: str, digest: str) -> None:
        """Let a namespace see a blob: it uploaded it."""
        known = select(blob_grants).where(blob_grants.c.namespace == namespace, blob_grants.c.digest == digest)
        if self._connection.execute(known).first() is None:
            self._connection.execute(insert(blob_grants).values(namespace=namespace, digest=digest))

    def uploaded(self, key_id: str, digest: str) -> None:
        """Record that a key uploaded a blob: it counts for its quota."""
        same = (blob_uploads.c.key_id == key_id, blob_uploads.c.digest == digest)
        if self._connection.execute(select(blob_uploads).where(*same)).first() is None:
            self._connection.execute(insert(blob_uploads).values(key_id=key_id, digest=digest))

    def visible(self, visible: Namespaces, digest: str) -> bool:
        """Whether a visible namespace uploaded the blob, or owns an adapter whose weights or sample it is.

        A sample is seen through live adapters only. Weights of retired ones stay: soups are rebuilt from them.
        """
        if visible is None:
            return self._connection.execute(select(blobs.c.digest).where(blobs.c.digest == digest)).first() is not None
        granted = exists().where(blob_grants.c.digest == digest, blob_grants.c.namespace.in_(visible))
        owned = exists().where(
            or_(
                adapters.c.weights_blob == digest,
                and_(adapters.c.sample_digest == digest, adapters.c.retired_at.is_(None)),
            ),
            adapters.c.namespace.in_(visible),
        )
        return bool(self._connection.execute(select(literal(1)).where(or_(granted, owned))).first())
