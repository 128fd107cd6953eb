"""Jobs: record and queue in one table, so that a job is enqueued in the transaction that writes its subject.

A worker that names itself in `progress`, `succeed` and `fail` cannot touch a job that was given to another since.
"""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, and_, select, update

from registry.catalogue.repository import Repository, matching, now, seen_by
from registry.catalogue.rows import JobRow, Namespaces, Page
from registry.catalogue.tables import job_turns, jobs, keys
from registry.errors import NotFound

UNENDED = ("queued", "running")
ROWS = select(jobs, keys.c.name.label("owner"), keys.c.namespaces.label("owner_namespaces")).outerjoin_from(
    jobs, keys, keys.c.id == jobs.c.created_by
)
"""Jobs with the name and the namespaces of the key each is of.

Without keys nobody is asked for one, and there is no name.
"""


COOKS = ("cook", "search")
"""Kinds of job that cook: a request of theirs waits in a blob."""


class Jobs(Repository[JobRow]):
    """Job rows. Every change of state is one UPDATE that names the state it starts from."""

    values = TypeAdapter(JobRow)

    def enqueue(
        self, kind: str, arguments: Mapping[str, Any], *, namespace: str, created_by: str,
        dedupe_key: str | None = None, delay: float = 0.0,
    ) -> JobRow:  # fmt: skip
        """Queue a job to run after `delay` seconds.

        One still queued under the same `dedupe_key` is that job; it is brought forward if it would run later.
        """
        moment = now()
        due = moment + timedelta(seconds=delay)
        same = None if dedupe_key is None else self._oldest(jobs.c.dedupe_key == dedupe_key, jobs.c.state == "queued")
        if same is not None:
            if due < same.run_after:
                self._change(same.id, "queued", run_after=due)
            return self.get(None, same.id)
        id_ = "job-" + secrets.token_hex(8)
        self._insert(
            jobs,
            id=id_,
            kind=kind,
            state="queued",
            namespace=namespace,
            created_by=created_by,
            arguments=dict(arguments),
            progress={},
            attempts=0,
            dedupe_key=dedupe_key,
            run_after=due,
            created_at=moment,
            updated_at=moment,
        )
        return self.get(None, id_)

    def claim(
        self, worker: str, kinds: Sequence[str], lease_seconds: float, moment: datetime, *, lane: str = ""
    ) -> JobRow | None:
        """Take a job that is due, by one UPDATE; None where there is none, or another was quicker.

        It is the oldest of the namespace whose last turn in this `lane` is longest ago: however much one of them has
        queued, another waits for one job of it and not for all.
        """
        turn = and_(job_turns.c.lane == lane, job_turns.c.namespace == jobs.c.namespace)
        due = (
            select(jobs.c.id)
            .outerjoin_from(jobs, job_turns, turn)
            .where(jobs.c.state == "queued", jobs.c.run_after <= moment, jobs.c.kind.in_(kinds))
            .order_by(job_turns.c.at.asc().nulls_first(), jobs.c.run_after, jobs.c.sequence)
            .limit(1)
            .scalar_subquery()
        )
        claimed = self._connection.execute(
            update(jobs)
            .where(jobs.c.id == due, jobs.c.state == "queued")
            .values(
                state="running",
                worker=worker,
                lease_until=moment + timedelta(seconds=lease_seconds),
                attempts=jobs.c.attempts + 1,
                updated_at=moment,
            )
            .returning(jobs.c.id)
        ).scalar_one_or_none()
        if claimed is None:
            return None
        row = self.get(None, claimed)
        self._take_turn(lane, row.namespace, moment)
        return row

    def _take_turn(self, lane: str, namespace: str, moment: datetime) -> None:
        """Note that a namespace had its turn."""
        its = update(job_turns).where(job_turns.c.lane == lane, job_turns.c.namespace == namespace)
        if self._connection.execute(its.values(at=moment)).rowcount == 0:
            self._insert(job_turns, lane=lane, namespace=namespace, at=moment)

    def heartbeat(self, id: str, worker: str, lease_seconds: float, moment: datetime) -> bool:
        """Prolong the lease; False when the job is no longer this worker's to run."""
        changed = self._connection.execute(
            update(jobs)
            .where(jobs.c.id == id, jobs.c.state == "running", jobs.c.worker == worker)
            .values(lease_until=moment + timedelta(seconds=lease_seconds))
        )
        return changed.rowcount == 1

    def progress(self, id: str, *, done: int, total: int, message: str, worker: str | None = None) -> bool:
        """Record how far a running job is; False when it is not (or no longer this worker's) to run."""
        return self._running(id, worker, progress={"done": done, "total": total, "message": message})

    def succeed(self, id: str, result: Mapping[str, Any], *, worker: str | None = None) -> bool:
        """End a running job with its result, and forget what earlier attempts failed with; False as above."""
        return self._running(id, worker, state="succeeded", result=dict(result), error=None, lease_until=None)

    def fail(self, id: str, error: Mapping[str, Any], retry_in: float | None, *, worker: str | None = None) -> bool:
        """End a running job with its error, or queue it again in `retry_in` seconds; False as above."""
        if retry_in is None:
            return self._running(id, worker, state="failed", error=dict(error), lease_until=None)
        again = now() + timedelta(seconds=retry_in)
        return self._running(id, worker, state="queued", error=dict(error), lease_until=None, run_after=again)

    def release(self, id: str, worker: str) -> bool:
        """Queue a running job again as if it had never been claimed; False when it is not this worker's."""
        return self._running(id, worker, state="queued", attempts=jobs.c.attempts - 1, lease_until=None, worker=None)

    def cancel(self, id: str) -> JobRow:
        """Cancel a job that has not ended; one that has stays as it is."""
        self._connection.execute(
            update(jobs)
            .where(jobs.c.id == id, jobs.c.state.in_(UNENDED))
            .values(state="cancelled", lease_until=None, updated_at=now())
        )
        return self.get(None, id)

    def requeue_expired(self, moment: datetime) -> int:
        """Queue again what runs under a lease that ended before `moment`; returns how many."""
        changed = self._connection.execute(
            update(jobs)
            .where(jobs.c.state == "running", jobs.c.lease_until < moment)
            .values(state="queued", lease_until=None, worker=None, updated_at=now())
        )
        return changed.rowcount

    def unended(self, kind: str) -> builtins.list[JobRow]:
        """Every job of a kind that is queued or running, oldest first."""
        query = ROWS.where(jobs.c.kind == kind, jobs.c.state.in_(UNENDED))
        return self._all(query.order_by(jobs.c.sequence))

    def unended_like(self, dedupe_key: str) -> JobRow | None:
        """The oldest job under this key that is queued or running."""
        return self._oldest(jobs.c.dedupe_key == dedupe_key, jobs.c.state.in_(UNENDED))

    def get(self, visible: Namespaces, id: str) -> JobRow:
        """A job of a visible namespace; raises NotFound."""
        row = self._one(ROWS.where(jobs.c.id == id, seen_by(visible, jobs.c.namespace)))
        if row is None:
            raise NotFound(f"There is no job {id[:80]!r}, or this key does not see it.", param="id")
        return row

    def list(
        self, visible: Namespaces, *, kind: str | None = None, state: str | None = None, limit: int,
        cursor: str | None = None,
    ) -> Page[JobRow]:  # fmt: skip
        """Jobs of the visible namespaces, newest first."""
        query = ROWS.where(seen_by(visible, jobs.c.namespace), *matching(jobs, kind=kind, state=state))
        return self._page(query, jobs.c.sequence, limit=limit, cursor=cursor)

    def _running(self, id: str, by: str | None, **values: Any) -> bool:
        mine = () if by is None else (jobs.c.worker == by,)
        return self._change(id, "running", *mine, **values)

    def _change(self, id: str, present: str, /, *conditions: ColumnElement[bool], **values: Any) -> bool:
        changed = self._connection.execute(
            update(jobs).where(jobs.c.id == id, jobs.c.state == present, *conditions).values(**values, updated_at=now())
        )
        return changed.rowcount == 1

    def _oldest(self, *conditions: ColumnElement[bool]) -> JobRow | None:
        return self._one(ROWS.where(*conditions).order_by(jobs.c.sequence).limit(1))
