"""Jobs: record and queue in one table, so that a job is enqueued in the transaction that writes its subject.

`progress`, `succeed` and `fail` take the worker's name, so that a worker cannot change a job that another has claimed
since. A training's loss curve is kept with its job until it has produced an adapter.
"""

from __future__ import annotations

import builtins
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import (
    JSON,
    BindParameter,
    Column,
    ColumnElement,
    Connection,
    ForeignKey,
    String,
    Table,
    and_,
    bindparam,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from registry.catalogue.repository import Repository, TableGateway, matching, now, seen_by
from registry.catalogue.rows import JobRow, Namespaces, Page, Requester
from registry.catalogue.tables import job_askers, job_turns, jobs, keys, metadata
from registry.errors import NotFound

TURN_WINDOW = timedelta(minutes=5)
"""A namespace counts as having used at most this much of a lane's time, in the order of turns."""
ACTIVE = ("queued", "running")
REQUESTER = TypeAdapter(Requester)
ROWS = select(jobs, keys.c.name.label("owner"), keys.c.namespaces.label("owner_namespaces")).outerjoin_from(
    jobs, keys, keys.c.id == jobs.c.created_by
)
"""Jobs with the name and the namespaces of their key, NULL on a server without keys."""
AHEAD = timedelta(minutes=5)
"""A row updated this much in the future shows that the clock was set back; clocks of servers differ by less."""
job_curves = Table(  # deleted by the database with their job: the previous release removes jobs and has no curves
    "job_curves",
    metadata,
    Column("job", String(32), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("curve", JSON, nullable=False),
)


class Jobs(Repository[JobRow]):
    """Job rows. Every change of state is one UPDATE whose condition is the previous state."""

    values = TypeAdapter(JobRow)

    def __init__(self, connection: Connection, traceparent: str | None = None) -> None:
        super().__init__(connection)
        self._traceparent = traceparent

    def enqueue(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        *,
        namespace: str,
        created_by: str,
        dedupe_key: str | None = None,
        delay: float = 0.0,
    ) -> JobRow:
        """Queue a job to run after `delay` seconds.

        Returns the job that is queued under the same `dedupe_key` if there is one, brought forward if it would start
        later.
        """
        moment = now()
        due = moment + timedelta(seconds=delay)
        queued = None if dedupe_key is None else self._oldest(jobs.c.dedupe_key == dedupe_key, jobs.c.state == "queued")
        if queued is not None:
            if due < queued.run_after:
                self._change(queued.id, "queued", run_after=due)
            self.add_requester(queued.id, created_by, request_id=arguments.get("request_id"))
            return self.get(None, queued.id)
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
        self,
        worker: str,
        kinds: Sequence[str],
        lease_seconds: float,
        moment: datetime,
        *,
        lane: str = "",
        excluded: Iterable[str] = (),
    ) -> JobRow | None:
        """Claim a due job for a worker by one UPDATE; None if there is none, or another worker was faster.

        Chooses the oldest job of the namespace with the fewest jobs running in this `lane`; among equals, of the one
        that has recently used the least time in it (`charge_lane`). So a namespace waits for at most one job of
        another, however many and however long the other's queued jobs are. Jobs whose ids are `excluded` stay queued.
        """
        parameters = {
            "any_kind": list(kinds),
            "excluded": list(excluded),
            "of_lane": lane,
            "by": worker,
            "moment": moment,
            "ahead": moment + AHEAD,
            "until": moment + timedelta(seconds=lease_seconds),
        }
        claimed = self._connection.execute(CLAIM, parameters).scalar_one_or_none()
        if claimed is None:
            return None
        row = self.get(None, claimed)
        # inserted here and not by `charge_lane`: an insert may fail, and a claim is retried
        if not self._exists(job_turns.c.lane == lane, job_turns.c.namespace == row.namespace):
            self._insert(job_turns, lane=lane, namespace=row.namespace, at=moment - TURN_WINDOW)
        return row

    def charge_lane(self, lane: str, row: JobRow, moment: datetime) -> bool:
        """Charge the namespace of a claimed job for the time it has run in a lane until `moment`, within TURN_WINDOW.

        Returns False if the job was claimed in another lane.
        """
        is_turn = and_(job_turns.c.lane == lane, job_turns.c.namespace == row.namespace)
        at = self._connection.execute(select(job_turns.c.at).where(is_turn).with_for_update()).scalar_one_or_none()
        if at is None or row.started_at is None:
            return False
        used = min(max(at, moment - TURN_WINDOW) + max(moment - row.started_at, timedelta()), moment)
        return self._update(job_turns, is_turn, at=used) == 1

    def heartbeat(self, id: str, worker: str, lease_seconds: float, moment: datetime) -> bool:
        """Extend the lease; returns False if the job is no longer this worker's to run."""
        is_claimed = and_(jobs.c.id == id, jobs.c.state == "running", jobs.c.worker == worker)
        return self._update(jobs, is_claimed, lease_until=moment + timedelta(seconds=lease_seconds)) == 1

    def progress(self, id: str, *, done: int, total: int, message: str, worker: str | None = None) -> bool:
        """Record the progress of a running job; returns False if it is not running, or another worker's."""
        return self._running(id, worker, progress={"done": done, "total": total, "message": message})

    def succeed(self, id: str, result: Mapping[str, Any], *, worker: str | None = None) -> bool:
        """End a running job with its result, and clear the error of earlier attempts; returns False like `progress`."""
        ended = {"state": "succeeded", "lease_until": None, "finished_at": now()}
        return self._running(id, worker, result=dict(result), error=None, **ended)

    def fail(self, id: str, error: Mapping[str, Any], retry_in: float | None, *, worker: str | None = None) -> bool:
        """End a running job with its error, or retry it in `retry_in` seconds; returns False like `progress`."""
        if retry_in is None:
            ended = {"state": "failed", "lease_until": None, "finished_at": now()}
            return self._running(id, worker, error=dict(error), **ended)
        retry = {"state": "queued", "lease_until": None, "run_after": now() + timedelta(seconds=retry_in)}
        return self._running(id, worker, error=dict(error), failures=jobs.c.failures + 1, **retry)

    def release(self, id: str, worker: str) -> bool:
        """Queue a running job again as if it had never been claimed; returns False if it is not this worker's."""
        return self._running(id, worker, state="queued", attempts=jobs.c.attempts - 1, lease_until=None, worker=None)

    def forgive_failures(self, id: str, reached: int, *, worker: str) -> bool:
        """Reset a running job's failures and crashes if its checkpoint has advanced to `reached`; True if it has."""
        is_claimed, has_advanced = jobs.c.worker == worker, jobs.c.reached < reached
        return self._change(id, "running", is_claimed, has_advanced, reached=reached, failures=0, crashes=0)

    def cancel(self, id: str) -> JobRow:
        """Cancel a queued or running job; an ended one stays as it is."""
        cancelled = {"state": "cancelled", "lease_until": None, "updated_at": now(), "finished_at": now()}
        self._update(jobs, jobs.c.id == id, jobs.c.state.in_(ACTIVE), **cancelled)
        return self.get(None, id)

    def requeue_expired(self, moment: datetime) -> int:
        """Queue jobs again whose lease expired before `moment`, so their process is gone; returns their number."""
        queued = {"state": "queued", "lease_until": None, "worker": None, "updated_at": now()}
        is_expired = and_(jobs.c.state == "running", jobs.c.lease_until < moment)
        return self._update(jobs, is_expired, crashes=jobs.c.crashes + 1, **queued)

    def active(self, kind: str) -> builtins.list[JobRow]:
        """Queued and running jobs of a kind, oldest first."""
        query = ROWS.where(jobs.c.kind == kind, jobs.c.state.in_(ACTIVE))
        return self._all(query.order_by(jobs.c.sequence))

    def failed(self, kind: str) -> builtins.list[JobRow]:
        """Failed jobs of a kind, oldest first."""
        return self._all(ROWS.where(jobs.c.kind == kind, jobs.c.state == "failed").order_by(jobs.c.sequence))

    def active_of_key(self, key_id: str) -> builtins.list[JobRow]:
        """Queued and running jobs of a key, oldest first."""
        query = ROWS.where(jobs.c.created_by == key_id, jobs.c.state.in_(ACTIVE))
        return self._all(query.order_by(jobs.c.sequence))

    def queue(self) -> dict[str, tuple[int, datetime | None, int]]:
        """The number of queued jobs, when the oldest of them was due, and the number of running jobs, by kind."""
        by_kind: dict[str, tuple[int, datetime | None, int]] = {}
        since = func.min(jobs.c.run_after, type_=jobs.c.run_after.type)
        query = select(jobs.c.kind, jobs.c.state, func.count(), since).where(jobs.c.state.in_(ACTIVE))
        for kind, state, count, oldest in self._connection.execute(query.group_by(jobs.c.kind, jobs.c.state)):
            waiting, first, running = by_kind.get(kind, (0, None, 0))
            by_kind[kind] = (count, oldest, running) if state == "queued" else (waiting, first, count)
        return by_kind

    def count_active(self, kind: str, *, created_by: str | None = None) -> int:
        """The number of queued and running jobs of a kind, of one key if `created_by` names it.

        Fits that pushes enqueue do not count.
        """
        is_counted = or_(jobs.c.kind != "fit", jobs.c.arguments["asked"].as_boolean())
        of_kind = matching(jobs, kind=kind, created_by=created_by)
        return self._count(jobs, *of_kind, jobs.c.state.in_(ACTIVE), is_counted)

    def mean_seconds(self, kind: str, *, of_last: int = 20) -> float | None:
        """The mean duration in seconds of the last succeeded jobs of a kind; None if none has succeeded."""
        done = ROWS.where(jobs.c.kind == kind, jobs.c.state == "succeeded", jobs.c.started_at.is_not(None))
        rows = self._all(done.order_by(jobs.c.sequence.desc()).limit(of_last))
        durations = [
            (row.finished_at - row.started_at).total_seconds() for row in rows if row.finished_at and row.started_at
        ]
        return sum(durations) / len(durations) if durations else None

    def add_requester(self, id: str, key_id: str, *, request_id: str | None = None) -> None:
        """Record that this key requested the job too."""
        has_requested = self._exists(job_askers.c.job == id, job_askers.c.key_id == key_id)
        if not has_requested and not self._exists(jobs.c.id == id, jobs.c.created_by == key_id):
            self._insert(job_askers, job=id, key_id=key_id, request_id=request_id, asked_at=now())

    def next_requester(self, row: JobRow) -> Requester | None:
        """The first other key that requested a job and is not revoked."""
        query = (
            select(job_askers.c.key_id, keys.c.namespaces, job_askers.c.request_id)
            .outerjoin_from(job_askers, keys, keys.c.id == job_askers.c.key_id)
            .where(job_askers.c.job == row.id, job_askers.c.key_id != row.created_by, keys.c.revoked_at.is_(None))
            .order_by(job_askers.c.asked_at, job_askers.c.key_id)
        )
        row_of_key = self._connection.execute(query).mappings().first()
        return None if row_of_key is None else REQUESTER.validate_python(dict(row_of_key))

    def hand_over(self, row: JobRow, to: Requester) -> JobRow:
        """Transfer a queued or running job to another key; it continues with that key's rights."""
        replaced = {"scope": to.namespaces, "request_id": to.request_id}
        arguments = {name: replaced.get(name, value) for name, value in row.arguments.items()}
        self._change(row.id, row.state, created_by=to.key_id, arguments=arguments)
        return self.get(None, row.id)

    def update_arguments(self, row: JobRow, changes: Mapping[str, Any]) -> JobRow:
        """Change arguments of a queued or running job, which reads them again before it ends."""
        self._change(row.id, row.state, arguments={**row.arguments, **changes})
        return self.get(None, row.id)

    def find_active(self, dedupe_key: str) -> JobRow | None:
        """The oldest queued or running job with this dedupe key."""
        return self._oldest(jobs.c.dedupe_key == dedupe_key, jobs.c.state.in_(ACTIVE))

    def find_succeeded(self, dedupe_key: str) -> JobRow | None:
        """The newest succeeded job with this dedupe key."""
        query = ROWS.where(jobs.c.dedupe_key == dedupe_key, jobs.c.state == "succeeded")
        return self._first(query.order_by(jobs.c.sequence.desc()).limit(1))

    def get(self, visible: Namespaces, id: str) -> JobRow:
        """A job of a visible namespace; raises NotFound."""
        row = self._first(ROWS.where(jobs.c.id == id, seen_by(visible, jobs.c.namespace)))
        if row is None:
            raise NotFound(f"There is no job {id[:80]!r}, or this key does not see it.", param="id")
        return row

    def list(
        self,
        visible: Namespaces,
        *,
        kind: str | None = None,
        state: str | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page[JobRow]:
        """Jobs of the visible namespaces, newest first."""
        query = ROWS.where(seen_by(visible, jobs.c.namespace), *matching(jobs, kind=kind, state=state))
        return self._page(query, jobs.c.sequence, limit=limit, cursor=cursor)

    def _running(self, id: str, worker: str | None, /, **values: Any) -> bool:
        return self._change(id, "running", *matching(jobs, worker=worker), **values)

    def _change(self, id: str, state: str, /, *conditions: ColumnElement[bool], **values: Any) -> bool:
        """Update a job that is in `state` and meets `conditions`; returns False if it is not."""
        is_in_state = and_(jobs.c.id == id, jobs.c.state == state)
        return self._update(jobs, is_in_state, *conditions, **values, updated_at=now()) == 1

    def _oldest(self, *conditions: ColumnElement[bool]) -> JobRow | None:
        return self._first(ROWS.where(*conditions).order_by(jobs.c.sequence).limit(1))


def _claim() -> ReturningUpdate[str]:
    """The statement of `claim`, built once: idle workers run it every second, and building it takes longer."""
    moment: BindParameter[datetime] = bindparam("moment")
    any_kind: BindParameter[Sequence[str]] = bindparam("any_kind", expanding=True)
    excluded: BindParameter[Sequence[str]] = bindparam("excluded", expanding=True)
    # a job that was queued before the clock was set back does not wait for its `run_after`
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
        .where(jobs.c.state == "queued", is_due, jobs.c.kind.in_(any_kind), jobs.c.id.not_in(excluded))
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


class Curves(TableGateway):
    """Curve rows; a curve has `train_history`, `valid_history` and `best_step`, like a training's record."""

    def put(self, job: str, curve: Mapping[str, Any]) -> None:
        """Store or replace the curve of a job."""
        if self._update(job_curves, job_curves.c.job == job, curve=dict(curve)) == 0:
            self._insert(job_curves, job=job, curve=dict(curve))

    def get(self, job: str) -> dict[str, Any] | None:
        """The curve of a job, None if it has none."""
        curve = self._connection.scalars(select(job_curves.c.curve).where(job_curves.c.job == job)).one_or_none()
        return None if curve is None else dict(curve)

    def remove(self, job: str) -> None:
        """Delete the curve of a job."""
        self._delete(job_curves, job_curves.c.job == job)
