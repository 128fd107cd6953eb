"""Old rows of tables that grow for as long as a server is used: ended jobs, usage by day, the audit, and worn rates.

Nothing names these rows but the list of who asked for a job. A collection says from which day on they are old.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, and_, delete, literal, select, tuple_

from registry.catalogue.rate_buckets import rate_buckets
from registry.catalogue.repository import database_clock
from registry.catalogue.tables import audit, job_askers, jobs, usage

A_DAY = 86_400_000_000
"""In microseconds."""
DAY = tuple(usage.primary_key.columns)


class Pruning:
    """Removes at most `limit` rows, the oldest first, and says how many; fewer than `limit` were all there are."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def jobs(self, before: datetime, limit: int) -> int:
        """Jobs that ended before then, however they ended; one that is queued or runs stays."""
        old = select(jobs.c.id).where(jobs.c.finished_at < before).order_by(jobs.c.finished_at).limit(limit)
        ids = list(self._connection.scalars(old))
        self._connection.execute(delete(job_askers).where(job_askers.c.job.in_(ids)))
        return self._connection.execute(delete(jobs).where(jobs.c.id.in_(ids))).rowcount

    def usage(self, before: datetime, limit: int) -> int:
        """Usage of days (UTC) before that one."""
        old = usage.c.day < before.date().isoformat()
        last = self._connection.execute(select(*DAY).where(old).order_by(*DAY).offset(limit - 1).limit(1)).first()
        some = old if last is None else and_(old, tuple_(*DAY) <= tuple_(*map(literal, last)))
        return self._connection.execute(delete(usage).where(some)).rowcount

    def audit(self, before: datetime, limit: int) -> int:
        """Entries of the audit from before then."""
        old = select(audit.c.id).where(audit.c.at < before).order_by(audit.c.at).limit(limit)
        ids = list(self._connection.scalars(old))
        return self._connection.execute(delete(audit).where(audit.c.id.in_(ids))).rowcount

    def rate_buckets(self, limit: int) -> int:
        """Buckets of rates that nobody took from for a day, by the database's clock: a minute empties each.

        One that somebody holds is left.
        """
        key = tuple(rate_buckets.primary_key.columns)
        old = rate_buckets.c.at < database_clock(self._connection) - A_DAY
        some = select(*key).where(old).order_by(*key).limit(limit).with_for_update(skip_locked=True)
        names = [tuple(row) for row in self._connection.execute(some)]
        return self._connection.execute(delete(rate_buckets).where(tuple_(*key).in_(names))).rowcount
