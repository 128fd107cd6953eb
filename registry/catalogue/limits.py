"""Limits of keys and namespaces, and their present use, counted from the rows of other tables.

A limit is checked in the transaction that adds a row, after adding it. Write transactions are serialized, so that each
sees the rows of the previous ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import CompoundSelect, and_, func, or_, select, tuple_, union

from registry.catalogue.jobs import ACTIVE
from registry.catalogue.repository import TableGateway
from registry.catalogue.rows import ENQUEUED_BY_PUSHES
from registry.catalogue.tables import (
    HAS_TEXT,
    adapters,
    blob_grants,
    blob_uploads,
    blobs,
    embeddings,
    jobs,
    limits,
    statistics,
)
from registry.spec.limits import LimitKind, UseLimits

NUMBERS = tuple(UseLimits.model_fields)


class UseLimitRows(TableGateway):
    """Limit rows. The server's defaults hold for a key or namespace without a row."""

    def get(self, kind: LimitKind, subject: str) -> UseLimits:
        """The limits that were set for a key or namespace; all None if there are none."""
        return self.of_subjects([(kind, subject)]).get((kind, subject), UseLimits())

    def of_subjects(self, subjects: Iterable[tuple[LimitKind, str]]) -> dict[tuple[LimitKind, str], UseLimits]:
        """The limits of those keys and namespaces that some were set for."""
        query = select(limits).where(tuple_(limits.c.kind, limits.c.subject).in_(sorted(subjects)))
        rows = self._connection.execute(query).mappings()
        return {(row["kind"], row["subject"]): UseLimits(**{name: row[name] for name in NUMBERS}) for row in rows}

    def set(self, kind: LimitKind, subject: str, values: UseLimits) -> None:
        """Set all limits of a key or namespace."""
        columns = values.model_dump()
        if self._update(limits, limits.c.kind == kind, limits.c.subject == subject, **columns) == 0:
            self._insert(limits, kind=kind, subject=subject, **columns)

    # --- present use ----------------------------------------------------------------------------

    def stored_bytes(self, kind: LimitKind, subject: str) -> int:
        """Total bytes of the distinct blobs that the subject uploaded, and of its adapters' weights, samples,
        embeddings and statistics.
        """
        query = select(func.coalesce(func.sum(blobs.c.size), 0)).where(blobs.c.digest.in_(_digests_of(kind, subject)))
        return int(self._connection.execute(query).scalar_one())

    def counted_blobs(self, kind: LimitKind, subject: str, digests: Collection[str]) -> Collection[str]:
        """The `digests` whose bytes are part of the subject's `stored_bytes`."""
        query = select(blobs.c.digest).where(
            blobs.c.digest.in_(digests), blobs.c.digest.in_(_digests_of(kind, subject))
        )
        return set(self._connection.execute(query).scalars())

    def adapters(self, kind: LimitKind, subject: str) -> int:
        """The number of live versions of adapters and soups."""
        owner = adapters.c.created_by if kind == "key" else adapters.c.namespace
        return self._count(adapters, owner == subject, adapters.c.retired_at.is_(None))

    def jobs(self, kind: LimitKind, subject: str) -> int:
        """The number of queued and running jobs that were requested; pushes enqueue jobs that do not count."""
        owner = jobs.c.created_by if kind == "key" else jobs.c.namespace
        is_requested = or_(jobs.c.kind.not_in(ENQUEUED_BY_PUSHES), jobs.c.arguments["asked"].as_boolean())
        return self._count(jobs, owner == subject, jobs.c.state.in_(ACTIVE), is_requested)


def _digests_of(kind: LimitKind, subject: str) -> CompoundSelect[str]:
    """The blobs that a subject uploaded, and those of its adapters."""
    if kind == "key":
        uploaded = select(blob_uploads.c.digest).where(blob_uploads.c.key_id == subject)
        is_owned = adapters.c.created_by == subject
    else:
        uploaded = select(blob_grants.c.digest).where(blob_grants.c.namespace == subject)
        is_owned = adapters.c.namespace == subject
    vectors = select(embeddings.c.blob_digest).join(adapters, adapters.c.sample_digest == embeddings.c.sample_digest)
    has_statistic = and_(
        adapters.c.digest == statistics.c.adapter_digest, adapters.c.sample_digest == statistics.c.sample_digest
    )
    return union(
        uploaded,
        select(adapters.c.weights_blob).where(is_owned),
        select(adapters.c.sample_digest).where(is_owned, HAS_TEXT),
        vectors.where(is_owned),
        select(statistics.c.blob_digest).join(adapters, has_statistic).where(is_owned),
    )
