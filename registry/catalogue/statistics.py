"""Statistics of adapters on their samples: a row for each adapter, sample and kind, named in recipes by its blob."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, delete, exists, select

from registry.catalogue.repository import Repository, seen_by
from registry.catalogue.rows import Namespaces, StatisticRow
from registry.catalogue.tables import adapters, statistics
from registry.spec import StatisticKind


class Statistics(Repository[StatisticRow]):
    """What was computed once from an adapter and its sample."""

    values = TypeAdapter(StatisticRow)

    def find(self, adapter_digest: str, sample_digest: str, kind: StatisticKind) -> StatisticRow | None:
        """The statistic of these bytes on this sample, where it was computed."""
        return self._first(select(statistics).where(*_same(adapter_digest, sample_digest, kind)))

    def put(self, row: StatisticRow) -> None:
        """Record a statistic, in the place of another of the same adapter, sample and kind."""
        same = _same(row.adapter_digest, row.sample_digest, row.kind)
        self._connection.execute(delete(statistics).where(*same))
        self._insert(statistics, **asdict(row))

    def named(self, visible: Namespaces, adapter_digest: str, blob: str) -> StatisticRow | None:
        """The statistic of these bytes that is in this blob, if a visible version has them with the text it is of."""
        of_both = exists().where(
            adapters.c.digest == statistics.c.adapter_digest,
            adapters.c.sample_digest == statistics.c.sample_digest,
            seen_by(visible, adapters.c.namespace),
        )
        its = (statistics.c.adapter_digest == adapter_digest, statistics.c.blob_digest == blob, of_both)
        return self._first(select(statistics).where(*its).limit(1))

    def lost(self, blobs: Collection[str]) -> set[str]:
        """Those of these blobs that are no statistic any more."""
        found = select(statistics.c.blob_digest).where(statistics.c.blob_digest.in_(sorted(blobs)))
        return set(blobs) - set(self._connection.scalars(found))


def _same(adapter_digest: str, sample_digest: str, kind: StatisticKind) -> list[ColumnElement[bool]]:
    """Whether a row is the one of these."""
    return [
        statistics.c.adapter_digest == adapter_digest,
        statistics.c.sample_digest == sample_digest,
        statistics.c.kind == kind,
    ]
