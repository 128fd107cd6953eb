"""Limits of keys and namespaces, and how much of them is in use, counted from the rows there are.

Whoever adds a row asks in the same transaction, after it is added: writes take turns, so that of two at the same time
the second sees what the first has added.
"""

from __future__ import annotations

from sqlalchemy import Connection, and_, func, insert, or_, select, union, update

from registry.catalogue.jobs import ACTIVE
from registry.catalogue.tables import adapters, blob_grants, blob_uploads, blobs, embeddings, jobs, limits, statistics
from registry.spec.limits import LimitKind, UseLimits

NUMBERS = tuple(UseLimits.model_fields)


class UseLimitRows:
    """Limit rows. A key or namespace that has none is left to the server's defaults."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, kind: LimitKind, subject: str) -> UseLimits:
        """What was set for a key or namespace."""
        columns = [limits.c[name] for name in NUMBERS]
        row = self._connection.execute(select(*columns).where(limits.c.kind == kind, limits.c.subject == subject))
        found = row.mappings().first()
        return UseLimits() if found is None else UseLimits.model_validate(dict(found))

    def set(self, kind: LimitKind, subject: str, wanted: UseLimits) -> None:
        """Set all limits of a key or namespace."""
        its = update(limits).where(limits.c.kind == kind, limits.c.subject == subject)
        if self._connection.execute(its.values(wanted.model_dump())).rowcount == 0:
            self._connection.execute(insert(limits).values(kind=kind, subject=subject, **wanted.model_dump()))

    # --- in use ---------------------------------------------------------------------------------

    def stored_bytes(self, kind: LimitKind, subject: str) -> int:
        """Bytes of every blob that it uploaded, or that an adapter of it is made of or measured by, each once."""
        if kind == "key":
            uploaded = select(blob_uploads.c.digest).where(blob_uploads.c.key_id == subject)
            own = adapters.c.created_by == subject
        else:
            uploaded = select(blob_grants.c.digest).where(blob_grants.c.namespace == subject)
            own = adapters.c.namespace == subject
        vectors = select(embeddings.c.blob_digest).join(
            adapters, adapters.c.sample_digest == embeddings.c.sample_digest
        )
        of_both = and_(
            adapters.c.digest == statistics.c.adapter_digest, adapters.c.sample_digest == statistics.c.sample_digest
        )
        digests = union(
            uploaded,
            select(adapters.c.weights_blob).where(own),
            select(adapters.c.sample_digest).where(own, adapters.c.sample_digest.is_not(None)),
            vectors.where(own),
            select(statistics.c.blob_digest).join(adapters, of_both).where(own),
        )
        query = select(func.coalesce(func.sum(blobs.c.size), 0)).where(blobs.c.digest.in_(digests))
        return int(self._connection.execute(query).scalar_one())

    def adapters(self, kind: LimitKind, subject: str) -> int:
        """Live versions of adapters and soups."""
        own = adapters.c.created_by if kind == "key" else adapters.c.namespace
        query = select(func.count()).select_from(adapters).where(own == subject, adapters.c.retired_at.is_(None))
        return int(self._connection.execute(query).scalar_one())

    def jobs(self, kind: LimitKind, subject: str) -> int:
        """Jobs that wait or run and were asked for: not those that a push brings with it."""
        own = jobs.c.created_by if kind == "key" else jobs.c.namespace
        asked = or_(jobs.c.kind.not_in(("embed", "fit")), jobs.c.arguments["asked"].as_boolean())
        query = select(func.count()).select_from(jobs).where(own == subject, jobs.c.state.in_(ACTIVE), asked)
        return int(self._connection.execute(query).scalar_one())
