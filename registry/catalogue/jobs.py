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
from sqlalchemy import BindParameter, ColumnElement, Connection, and_, bindparam, func, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from registry.catalogue.repository import Repository, matching, now, seen_by
from registry.catalogue.rows import Asker, JobRow, Namespaces, Page
from registry.catalogue.tables import job_askers, job_turns, jobs, keys
from registry.errors import NotFound

REMEMBERED = timedelta(minutes=5)
"""How much of a lane's time a namespace can have used, in the order of turns."""
UNENDED = ("queued", "running")
ASKER = TypeAdapter(Asker)
ROWS = select(jobs, keys.c.name.label("owner"), keys.c.namespaces.label("owner_namespaces")).outerjoin_from(
    jobs, keys, keys.c.id == jobs.c.created_by
)
"""Jobs with the name and the namespaces of the key each is of.

Without keys nobody is asked for one, and there is no name.
"""


AHEAD = timedelta(minutes=5)
"""Rows that were changed so much after now are of a clock that has been set back; clocks of servers differ by less."""
COOKS = ("cook", "search")
"""Kinds of job that cook: a request of theirs waits in a blob."""


class Jobs(Repository[JobRow]):
    """Job rows. Every change of state is one UPDATE that names the state it starts from."""

    values = TypeAdapter(JobRow)

    def __init__(self, connection: Connection, traceparent: str | None = None) -> None:
        super().__init__(connection)
        self._traceparent = traceparent

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
            self.join(same.id, created_by, request_id=arguments.get("request_id"))
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
            traceparent=self._traceparent,
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

        It is the oldest of the namespace with the fewest jobs running in this `lane`, and of equals of the one that
        has used the least of its time lately (`took`): however much one of them has queued, and however long its jobs
        are, another waits for one job of it and not for all.
        """
        asked = {
            "any_kind": list(kinds), "of_lane": lane, "by": worker, "moment": moment, "ahead": moment + AHEAD,
            "until": moment + timedelta(seconds=lease_seconds),
        }  # fmt: skip
        claimed = self._connection.execute(CLAIM, asked).scalar_one_or_none()
        if claimed is None:
            return None
        row = self.get(None, claimed)
        its = select(job_turns.c.at).where(job_turns.c.lane == lane, job_turns.c.namespace == row.namespace)
        if self._connection.execute(its).first() is None:  # here and not in `took`: a claim may fail and be made again
            self._insert(job_turns, lane=lane, namespace=row.namespace, at=moment - REMEMBERED)
        return row

    def took(self, lane: str, row: JobRow, moment: datetime) -> bool:
        """A claimed job kept a worker of this lane until now: turns of its namespace come later by as much.

        Whoever used nothing for `REMEMBERED` is no further ahead than that, and nobody is put off for longer. False
        where it was claimed in another lane.
        """
        its = (job_turns.c.lane == lane, job_turns.c.namespace == row.namespace)
        at = self._connection.execute(select(job_turns.c.at).where(*its).with_for_update()).scalar_one_or_none()
        if at is None or row.started_at is None:
            return False
        used = min(max(at, moment - REMEMBERED) + max(moment - row.started_at, timedelta()), moment)
        return self._connection.execute(update(job_turns).where(*its).values(at=used)).rowcount == 1

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
        ended = {"state": "succeeded", "lease_until": None, "finished_at": now()}
        return self._running(id, worker, result=dict(result), error=None, **ended)

    def fail(self, id: str, error: Mapping[str, Any], retry_in: float | None, *, worker: str | None = None) -> bool:
        """End a running job with its error, or queue it again in `retry_in` seconds; False as above."""
        if retry_in is None:
            ended = {"state": "failed", "lease_until": None, "finished_at": now()}
            return self._running(id, worker, error=dict(error), **ended)
        again = {"state": "queued", "lease_until": None, "run_after": now() + timedelta(seconds=retry_in)}
        return self._running(id, worker, error=dict(error), failures=jobs.c.failures + 1, **again)

    def release(self, id: str, worker: str) -> bool:
        """Queue a running job again as if it had never been claimed; False when it is not this worker's."""
        return self._running(id, worker, state="queued", attempts=jobs.c.attempts - 1, lease_until=None, worker=None)

    def came_further(self, id: str, reached: int, *, worker: str) -> bool:
        """Forgive a running job its crashes where what it saves has come further since; False where it has not."""
        mine, further = jobs.c.worker == worker, jobs.c.reached < reached
        return self._change(id, "running", mine, further, reached=reached, crashes=0)

    def cancel(self, id: str) -> JobRow:
        """Cancel a job that has not ended; one that has stays as it is."""
        self._connection.execute(
            update(jobs)
            .where(jobs.c.id == id, jobs.c.state.in_(UNENDED))
            .values(state="cancelled", lease_until=None, updated_at=now(), finished_at=now())
        )
        return self.get(None, id)

    def requeue_expired(self, moment: datetime) -> int:
        """Queue again what runs under a lease that ended before `moment`, its process gone; returns how many."""
        changed = self._connection.execute(
            update(jobs)
            .where(jobs.c.state == "running", jobs.c.lease_until < moment)
            .values(state="queued", lease_until=None, worker=None, crashes=jobs.c.crashes + 1, updated_at=now())
        )
        return changed.rowcount

    def unended(self, kind: str) -> builtins.list[JobRow]:
        """Every job of a kind that is queued or running, oldest first."""
        query = ROWS.where(jobs.c.kind == kind, jobs.c.state.in_(UNENDED))
        return self._all(query.order_by(jobs.c.sequence))

    def unended_of(self, key_id: str) -> builtins.list[JobRow]:
        """Every job of a key that is queued or running, oldest first."""
        query = ROWS.where(jobs.c.created_by == key_id, jobs.c.state.in_(UNENDED))
        return self._all(query.order_by(jobs.c.sequence))

    def queue(self) -> dict[str, tuple[int, datetime | None, int]]:
        """By kind: how many wait, since when the oldest of them was to be begun, and how many run."""
        found: dict[str, tuple[int, datetime | None, int]] = {}
        since = func.min(jobs.c.run_after, type_=jobs.c.run_after.type)
        query = select(jobs.c.kind, jobs.c.state, func.count(), since).where(jobs.c.state.in_(UNENDED))
        for kind, state, count, oldest in self._connection.execute(query.group_by(jobs.c.kind, jobs.c.state)):
            waiting, first, running = found.get(kind, (0, None, 0))
            found[kind] = (count, oldest, running) if state == "queued" else (waiting, first, count)
        return found

    def count_unended(self, kind: str, *, created_by: str | None = None) -> int:
        """How many jobs of a kind, or of a kind and key, are queued or running."""
        whose = () if created_by is None else (jobs.c.created_by == created_by,)
        query = select(func.count()).where(jobs.c.kind == kind, jobs.c.state.in_(UNENDED), *whose)
        return int(self._connection.execute(query.select_from(jobs)).scalar_one())

    def namespaces_waiting(self, kind: str) -> int:
        """How many namespaces have a job of a kind queued."""
        query = select(func.count(jobs.c.namespace.distinct())).where(jobs.c.kind == kind, jobs.c.state == "queued")
        return int(self._connection.execute(query).scalar_one())

    def seconds_each(self, kind: str, *, of_last: int = 20) -> float | None:
        """How long the last jobs of a kind took that succeeded, on average; None where none has."""
        done = ROWS.where(jobs.c.kind == kind, jobs.c.state == "succeeded", jobs.c.started_at.is_not(None))
        rows = self._all(done.order_by(jobs.c.sequence.desc()).limit(of_last))
        took = [
            (row.finished_at - row.started_at).total_seconds() for row in rows if row.finished_at and row.started_at
        ]
        return sum(took) / len(took) if took else None

    def join(self, id: str, key_id: str, *, request_id: str | None = None) -> None:
        """Note that this key asked for the job too."""
        same = select(job_askers.c.job).where(job_askers.c.job == id, job_askers.c.key_id == key_id)
        its_own = select(jobs.c.id).where(jobs.c.id == id, jobs.c.created_by == key_id)
        if all(self._connection.execute(known).first() is None for known in (same, its_own)):
            self._insert(job_askers, job=id, key_id=key_id, request_id=request_id, asked_at=now())

    def other_asker(self, row: JobRow) -> Asker | None:
        """The first other key that asked for a job and is not revoked."""
        query = (
            select(job_askers.c.key_id, keys.c.namespaces, job_askers.c.request_id)
            .outerjoin_from(job_askers, keys, keys.c.id == job_askers.c.key_id)
            .where(job_askers.c.job == row.id, job_askers.c.key_id != row.created_by, keys.c.revoked_at.is_(None))
            .order_by(job_askers.c.asked_at, job_askers.c.key_id)
        )
        found = self._connection.execute(query).mappings().first()
        return None if found is None else ASKER.validate_python(dict(found))

    def hand_over(self, row: JobRow, to: Asker) -> JobRow:
        """Have an unended job be another key's: it works on behalf of that one from now on."""
        on_behalf = {"scope": to.namespaces, "request_id": to.request_id}
        arguments = {name: on_behalf.get(name, value) for name, value in row.arguments.items()}
        self._change(row.id, row.state, created_by=to.key_id, arguments=arguments)
        return self.get(None, row.id)

    def amend(self, row: JobRow, said: Mapping[str, Any]) -> JobRow:
        """Change arguments of an unended job, which it reads once more before it ends."""
        self._change(row.id, row.state, arguments={**row.arguments, **said})
        return self.get(None, row.id)

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


def _claim() -> ReturningUpdate[str]:
    """`claim`'s statement: workers without a job run it every second, and building it takes longer than it does."""
    moment: BindParameter[datetime] = bindparam("moment")
    any_kind: BindParameter[Sequence[str]] = bindparam("any_kind", expanding=True)
    # one that was queued before the clock was set back does not wait for it
    is_due = (jobs.c.run_after <= moment) | (jobs.c.updated_at > bindparam("ahead"))
    turn = and_(job_turns.c.lane == bindparam("of_lane"), job_turns.c.namespace == jobs.c.namespace)
    running = (
        select(jobs.c.namespace, func.count().label("count"))
        .where(jobs.c.state == "running", jobs.c.kind.in_(any_kind))
        .group_by(jobs.c.namespace)
        .subquery()
    )
    due = (
        select(jobs.c.id)
        .outerjoin_from(jobs, job_turns, turn)
        .outerjoin(running, running.c.namespace == jobs.c.namespace)
        .where(jobs.c.state == "queued", is_due, jobs.c.kind.in_(any_kind))
        .order_by(
            func.coalesce(running.c.count, 0), job_turns.c.at.asc().nulls_first(), jobs.c.run_after, jobs.c.sequence
        )
        .limit(1)
        .scalar_subquery()
    )
    return (
        update(jobs)
        .where(jobs.c.id == due, jobs.c.state == "queued")
        .values(
            state="running",
            worker=bindparam("by"),
            lease_until=bindparam("until"),
            attempts=jobs.c.attempts + 1,
            updated_at=moment,
            started_at=moment,
        )
        .returning(jobs.c.id)
    )


CLAIM = _claim()
