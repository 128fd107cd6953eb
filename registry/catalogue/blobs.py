"""Which blobs are stored and who may see them; the bytes live in the blob store."""

from __future__ import annotations

from sqlalchemy import Connection, exists, insert, literal, or_, select, update

from registry.catalogue.repository import now
from registry.catalogue.rows import Namespaces
from registry.catalogue.tables import adapters, blob_grants, blobs


class Blobs:
    """Blob rows and grants."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def seen(self, digest: str, size: int) -> None:
        """Record that these bytes are stored; called in the transaction that names them."""
        changed = self._connection.execute(update(blobs).where(blobs.c.digest == digest).values(seen_at=now()))
        if changed.rowcount == 0:
            self._connection.execute(insert(blobs).values(digest=digest, size=size, seen_at=now()))

    def digests(self) -> set[str]:
        """Every blob that a transaction named."""
        return set(self._connection.execute(select(blobs.c.digest)).scalars())

    def grant(self, namespace: str, digest: str) -> None:
        """Let a namespace see a blob: it uploaded it."""
        known = select(blob_grants).where(blob_grants.c.namespace == namespace, blob_grants.c.digest == digest)
        if self._connection.execute(known).first() is None:
            self._connection.execute(insert(blob_grants).values(namespace=namespace, digest=digest))

    def visible(self, visible: Namespaces, digest: str) -> bool:
        """Whether a visible namespace uploaded the blob, or owns an adapter whose weights or sample it is."""
        if visible is None:
            return self._connection.execute(select(blobs.c.digest).where(blobs.c.digest == digest)).first() is not None
        granted = exists().where(blob_grants.c.digest == digest, blob_grants.c.namespace.in_(visible))
        owned = exists().where(
            or_(adapters.c.weights_blob == digest, adapters.c.sample_digest == digest),
            adapters.c.namespace.in_(visible),
        )
        return bool(self._connection.execute(select(literal(1)).where(or_(granted, owned))).first())
