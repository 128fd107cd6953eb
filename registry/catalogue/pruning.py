"""Removal of old rows from tables that grow with use: ended jobs, daily usage, the audit log, and rate buckets.

No other rows refer to these, except the requesters of a job. `lifecycle.collect` decides which days are old.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, and_, literal, select, tuple_

from registry.catalogue.rate_buckets import rate_buckets
from registry.catalogue.repository import TableGateway, database_clock
from registry.catalogue.tables import audit, job_askers, jobs, metadata, usage

DAY_MICROSECONDS = 86_400_000_000
USAGE_KEY = tuple(usage.primary_key.columns)
"""The day comes first in it, so that its order is by age."""


class Pruning(TableGateway):
    """Each method but `count` removes at most `limit` old rows, oldest first, and returns their number."""

    def count(self, name: str, cutoff: datetime) -> int:
        """The number of rows that the method of this name removes without a limit."""
        is_old = {"jobs": _is_old_job, "usage": _is_old_usage, "audit": _is_old_entry}[name](cutoff)
        return self._count(metadata.tables[name], is_old)

    def jobs(self, cutoff: datetime, limit: int) -> int:
        """Remove jobs that ended before `cutoff`."""
        old = select(jobs.c.id).where(_is_old_job(cutoff)).order_by(jobs.c.finished_at).limit(limit)
        ids = list(self._connection.scalars(old))
        self._delete(job_askers, job_askers.c.job.in_(ids))
        return self._delete(jobs, jobs.c.id.in_(ids))

    def usage(self, cutoff: datetime, limit: int) -> int:
        """Remove usage of days (UTC) before that of `cutoff`."""
        is_old = _is_old_usage(cutoff)
        query = select(*USAGE_KEY).where(is_old).order_by(*USAGE_KEY).offset(limit - 1).limit(1)
        last = self._connection.execute(query).first()
        removed = is_old if last is None else and_(is_old, tuple_(*USAGE_KEY) <= tuple_(*map(literal, last)))
        return self._delete(usage, removed)

    def audit(self, cutoff: datetime, limit: int) -> int:
        """Remove entries of the audit log from before `cutoff`."""
        old = select(audit.c.id).where(_is_old_entry(cutoff)).order_by(audit.c.at).limit(limit)
        ids = list(self._connection.scalars(old))
        return self._delete(audit, audit.c.id.in_(ids))

    def rate_buckets(self, limit: int) -> int:
        """Remove rate buckets unused for a day by the database's clock, except locked ones; a minute empties each."""
        key = tuple(rate_buckets.primary_key.columns)
        is_old = rate_buckets.c.at < database_clock(self._connection) - DAY_MICROSECONDS
        query = select(*key).where(is_old).order_by(*key).limit(limit).with_for_update(skip_locked=True)
        names = [tuple(row) for row in self._connection.execute(query)]
        return self._delete(rate_buckets, tuple_(*key).in_(names))


def _is_old_job(cutoff: datetime) -> ColumnElement[bool]:
    return jobs.c.finished_at < cutoff


def _is_old_usage(cutoff: datetime) -> ColumnElement[bool]:
    return usage.c.day < cutoff.date().isoformat()


def _is_old_entry(cutoff: datetime) -> ColumnElement[bool]:
    return audit.c.at < cutoff
