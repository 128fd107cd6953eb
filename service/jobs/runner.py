"""The runner of queued jobs (`catalogue.jobs`): claims, heartbeats, retries, cancellation; kinds are in `jobs.kinds`.

Built by the runtime, which starts and stops its threads; routes call `cancel` and wake the `job_board`. Jobs survive a
restart: a job whose process died is claimed again once its lease is over, or at once if this process is the only owner
of the data.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from opentelemetry.trace import StatusCode, get_current_span

from registry.catalogue import Catalogue
from registry.catalogue.jobs import Jobs
from registry.catalogue.rows import JobRow
from registry.context import Caller
from registry.cores import use_cores
from registry.errors import Busy, Cancelled, Internal, SoupError, Unavailable, as_dict
from registry.lifecycle.collect import collect
from registry.progress import Progress
from registry.samples.sample import retry_embeddings
from service.job_board import Interrupted, Outcome
from service.jobs.clock_steps import ClockSteps
from service.jobs.contract import JobContext, Lane, workers_of
from service.jobs.fit_process import FitProcess
from service.jobs.gradient_process import GradientProcess
from service.jobs.kinds import KINDS
from service.jobs.training_requests import blobs_in_use, remove_old_trainings
from service.operations.blob_check import delete_ended_requests
from service.periodic import Periodic
from service.services import Services

log = logging.getLogger("soup.jobs")
IDLE_SECONDS = 1.0
STOP_SECONDS = 6.0
"""How long jobs may take to notice that the server stops, and to save themselves."""
PROGRESS_SECONDS = 0.5
RETRY_SECONDS = 2.0
"""Delay before the first retry; doubled for each further one."""
FINAL = frozenset({"succeeded", "failed", "cancelled"})


class JobRunner:
    """Threads that each run one job at a time of their lane, so that no cook waits behind a fit or an embedding.

    `settings.job_workers` threads cook and as many embed; one fits and one searches, each with one child process.
    """

    def __init__(self, services: Services, *, sole_owner: bool) -> None:
        self.services = services
        self._settings = services.settings
        self._database, self._blobs = services.registry.database, services.registry.blobs
        self._board = services.jobs
        self._sole_owner = sole_owner
        self._name = f"worker-{uuid.uuid4().hex[:12]}"
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._claimable = True
        """False while the database does not answer, which is logged once, not every second of an outage."""
        self._claiming = threading.Lock()
        self._clock = ClockSteps()
        self._beat_at = self._steady_since = float("-inf")
        """When the database took the last heartbeat, and since when it has taken all of them."""
        lease = self._settings.job_lease_seconds
        self._periodics = [
            Periodic("heartbeat of jobs", lease / 4, self._beat),
            Periodic("removal of unfinished uploads", lease / 4, self._sweep_uploads),
        ]
        if self._settings.role != "api":
            interval = self._settings.collect_seconds
            self._periodics.append(Periodic("collection", interval, self._collect))
            self._periodics.append(Periodic("removal of old trainings", interval, self._remove_old_trainings))
        self.fitting = FitProcess(self._database, self._settings)
        self.computing = GradientProcess(self._settings)

    def start(self) -> None:
        """Requeue jobs that dead processes of a sole owner had, and failed embeddings; start the threads.

        Does nothing once it is stopping.
        """
        if self._stopping.is_set():
            return
        self._beat()
        if self._sole_owner:
            with self._database.write() as catalogue:
                catalogue.jobs.requeue_expired(_now() + timedelta(days=3650))
        retry_embeddings(self.services.registry)
        lanes = [lane for lane, count in workers_of(self._settings).items() for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"soup-jobs-{number}", daemon=True)
            for number, lane in enumerate(lanes)
        ]
        for thread in self._threads:
            thread.start()
        for periodic in self._periodics:
            periodic.start()

    def begin_stop(self) -> None:
        """Have running jobs go back to the queue at their next progress, and wake those who wait for jobs."""
        self._stopping.set()
        self._board.close()

    def stop(self, *, seconds: float = STOP_SECONDS) -> bool:
        """Return running jobs to the queue and end the threads; False if some threads still run after so long.

        Their jobs are returned too and run again; the results of such threads are ignored.
        """
        self.begin_stop()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        stopped = [periodic.stop(seconds=max(0.0, deadline - time.monotonic())) for periodic in self._periodics]
        ended = all(stopped) and not any(thread.is_alive() for thread in self._threads)
        for job_id in () if ended else self._board.running():
            log.warning("a job is given back although its thread is at work", extra={"fields": {"job": job_id}})
            with suppress(Busy, Unavailable):  # its lease expires instead
                self._store(partial(Jobs.release, id=job_id, worker=self._name))
        self._threads = []
        self.fitting.stop()
        self.computing.stop()
        return ended

    def _work(self, lane: Lane) -> None:
        use_cores(1)
        while not self._stopping.is_set():
            rung = self._board.rung
            row = self._claim(lane)
            if row is None:
                self._board.wait(rung=rung, seconds=IDLE_SECONDS)
                continue
            try:
                self._run(row)
            except (Busy, Unavailable) as error:  # its end is not stored: it runs again after its lease
                fields = {"job": row.id, "kind": row.kind}
                log.warning("the end of a job is not stored: %s", error.message, extra={"fields": fields})
            except Exception:
                log.exception("ending a job failed", extra={"fields": {"job": row.id, "kind": row.kind}})

    def _claim(self, lane: Lane) -> JobRow | None:
        if self._blobs.is_failing and self._blobs.probe() is not None:
            return None  # every job needs the blobs: it would fail for good after some attempts
        kinds = [name for name, kind in KINDS.items() if kind.lane == lane]
        try:
            with self._database.write() as catalogue:
                lease, running = self._settings.job_lease_seconds, self._board.running()  # requeued ones run until told
                row = catalogue.jobs.claim(self._name, kinds, lease, _now(), lane=lane, excluded=running)
        except (Busy, Unavailable) as error:  # the queue is still there when the database is back
            if self._set_claimable(claimable=False):
                log.warning("no job can be claimed: %s", error.message)
        except Exception:
            log.exception("claiming a job failed")
        else:
            if self._set_claimable(claimable=True):
                log.info("jobs can be claimed again")
            return row
        return None

    def _set_claimable(self, *, claimable: bool) -> bool:
        """Note if jobs can be claimed; returns True to the one thread that changes it."""
        with self._claiming:
            changed, self._claimable = claimable != self._claimable, claimable
        return changed

    def _run(self, row: JobRow) -> None:
        """Run a claimed job, and remove the files that only it needed if it ended for good."""
        started = time.monotonic()
        tracing = self.services.tracing
        span = nullcontext() if tracing is None else tracing.job(row.kind, row.id, row.traceparent)
        with self._board.runs(row.id) as cancelled, span:
            ended = self._attempt(row, self._progress(row, cancelled))
        self._board.metrics.seconds.labels(row.kind).observe(time.monotonic() - started)
        try:
            if ended:
                KINDS[row.kind].clean(self.services, row)
        except (Busy, Unavailable) as error:
            log.warning("files of %s go with the next collection: %s", row.id, error.message)
        finally:
            self._board.tell(row.id)

    def _attempt(self, row: JobRow, progress: Progress) -> bool:
        """Try the job once; True if it ended for good, here or by a cancellation."""
        failures = self._since_progress(row, row.failures + row.crashes)
        try:
            if failures >= self._settings.job_attempts:
                raise Internal(f"The process of the job crashed {row.crashes} times.")
            result = KINDS[row.kind].run(JobContext(self.services, self.fitting, self.computing, row, progress))
            if self._succeed(row, result):
                self._ended(row.kind, "succeeded")
                return True
            return self._ended_elsewhere(row)
        except (Interrupted, Busy, Unavailable) as error:
            if isinstance(error, Interrupted) or self._stopping.is_set():  # perhaps of a child that the stop has killed
                self._store(lambda jobs: jobs.release(row.id, self._name))
                return False
            return self._fail(row, error, retry_in=self._retry_in(row, failures))
        except Cancelled as error:
            if not self._ended_elsewhere(row):
                return self._fail(row, error, retry_in=None)
            self._store(lambda jobs: self._took(jobs, row))
            return True
        except SoupError as error:
            return self._fail(row, error, retry_in=None)
        except Exception as error:
            internal = Internal(f"The job failed on our side ({type(error).__name__}); the server's log has the rest.")
            return self._fail(row, internal, retry_in=self._retry_in(row, failures), unexpected=error)

    def _succeed(self, row: JobRow, result: dict[str, Any]) -> bool:
        """Store the result; False if this worker no longer has the job."""
        with self._database.write() as catalogue:
            self._took(catalogue.jobs, row)
            return catalogue.jobs.succeed(row.id, result, worker=self._name)

    def _took(self, jobs: Jobs, row: JobRow) -> bool:
        """Count the time that a job took for its namespace, however it ended."""
        return jobs.charge_lane(KINDS[row.kind].lane, row, _now())

    def _ended(self, kind: str, outcome: Outcome, code: str | None = None) -> None:
        """Count how an attempt ended, and set it on its span."""
        self._board.metrics.ended.labels(kind, outcome).inc()
        if code is not None:
            self._board.metrics.errors.labels(code).inc()
        span = get_current_span()
        span.set_attributes({"soup.job.outcome": outcome} | ({} if code is None else {"error.type": code}))
        if outcome == "failed":
            span.set_status(StatusCode.ERROR)

    def _since_progress(self, row: JobRow, failures: int) -> int:
        """The number of failures and crashes since the last progress of the job's saved state; `failures` are known."""
        if not failures:
            return 0
        reached = KINDS[row.kind].reached(self.services, row)
        forgiven = self._store(lambda jobs: jobs.forgive_failures(row.id, reached, worker=self._name))
        return 0 if forgiven else failures

    def _retry_in(self, row: JobRow, failures: int) -> float | None:
        """Seconds until the next attempt of a job that has failed; None if this was the last one."""
        failures = self._since_progress(row, failures)
        return RETRY_SECONDS * 2.0**failures if failures + 1 < self._settings.job_attempts else None

    def _fail(
        self, row: JobRow, error: SoupError, *, retry_in: float | None, unexpected: Exception | None = None
    ) -> bool:
        """Store the failure and log it once; True if the job ended with it or was cancelled before.

        `unexpected` is the exception that `error` stands for; the log gets its class and traceback.
        """
        level = logging.WARNING if unexpected is None else logging.ERROR
        fields = {"job": row.id, "kind": row.kind, "code": error.code}
        cause = (unexpected or error) if isinstance(error, Internal) else None
        log.log(level, "job failed", exc_info=cause, extra={"fields": fields})
        with self._database.write() as catalogue:
            self._took(catalogue.jobs, row)
            is_ours = catalogue.jobs.fail(row.id, as_dict(error), retry_in, worker=self._name)
            if is_ours and retry_in is None:
                KINDS[row.kind].on_unsuccessful_end(catalogue, row)
        if not is_ours:
            return self._ended_elsewhere(row)
        self._ended(row.kind, "failed" if retry_in is None else "retried", error.code)
        return retry_in is None

    def _ended_elsewhere(self, row: JobRow) -> bool:
        """Return True if it was cancelled, or its success was stored without an answer; else another worker has it."""
        with self._database.read() as catalogue:
            state = catalogue.jobs.get(None, row.id).state
        if state == "cancelled":  # else whoever stored the success counts it
            self._ended(row.kind, state)
        return state in ("cancelled", "succeeded")

    def _store(self, change: Callable[[Jobs], bool]) -> bool:
        """Change a job's row in its own transaction; False if this worker no longer has the job."""
        with self._database.write() as catalogue:
            return change(catalogue.jobs)

    def _progress(self, row: JobRow, cancelled: threading.Event) -> Progress:
        """The progress callable of a job: stores at most twice a second, and raises if the job is to end."""
        stored_at: float | None = None

        def report(done: int, total: int, message: str) -> None:
            nonlocal stored_at
            if cancelled.is_set():
                raise Cancelled("The job was cancelled.")
            now = time.monotonic()
            if stored_at is None or now - stored_at >= PROGRESS_SECONDS or self._stopping.is_set():
                stored_at = now
                self._report(row, done, total, message)

        return report

    def _report(self, row: JobRow, done: int, total: int, message: str) -> None:
        """Store the progress of a job and notify its watchers; raises Cancelled if it was lost, or Interrupted."""
        self._check_stopping()
        try:
            is_ours = self._store(
                lambda jobs: jobs.progress(row.id, done=done, total=total, message=message, worker=self._name)
            )
        except (Busy, Unavailable) as error:  # lost progress is no reason to end the job
            log.warning("progress is not stored: %s", error.message)
            return
        if not is_ours:
            raise Cancelled("The job was cancelled.")
        self._board.tell(row.id)

    def _beat(self) -> None:
        """Renew the leases of jobs running here, and notice cancellations by other processes.

        Jobs of others are requeued only after a lease without an outage: an outage delays their heartbeats too.
        """
        running, lease = self._board.running(), self._settings.job_lease_seconds
        with self._database.write() as catalogue:
            for job_id, cancelled in running.items():
                if not catalogue.jobs.heartbeat(job_id, self._name, lease, _now()):
                    cancelled.set()
            beat_at = time.monotonic()
            if beat_at - self._beat_at > lease / 2:
                self._steady_since = beat_at
            if beat_at - self._steady_since >= lease:
                catalogue.jobs.requeue_expired(_now())
        self._beat_at = beat_at  # only once it is committed

    def _sweep_uploads(self) -> None:
        """Remove expired unfinished uploads."""
        if self._clock.is_steady():
            self.services.uploads.sweep()

    def _remove_old_trainings(self) -> None:
        if self._clock.is_steady():
            remove_old_trainings(self._database, self._settings)

    def _collect(self) -> None:
        """Collect garbage, until the server stops, and delete the requests of cooks that have ended."""
        with suppress(Interrupted):
            if self._clock.is_steady():
                collect(self.services.registry, _now(), used=blobs_in_use, progress=self._check_stopping)
                delete_ended_requests(self._database, self._blobs, self._blobs.digests())

    def _check_stopping(self, *_: object) -> None:
        if self._stopping.is_set():
            raise Interrupted("The server is stopping.")


def _now() -> datetime:
    return datetime.now(UTC)


def cancel(services: Services, caller: Caller, job_id: str) -> JobRow:
    """Cancel a queued or running job that the caller may see; an ended job stays as it is. Raises NotFound."""
    with services.registry.database.write() as catalogue:
        row = catalogue.jobs.get(caller.namespaces, job_id)
        if row.state not in FINAL:
            caller.audit(catalogue, "job.cancel", row.id, namespace=row.namespace, kind=row.kind)
            row = _cancel_row(catalogue, row)
    _finish_cancellation(services, row)
    return row


def _cancel_row(catalogue: Catalogue, row: JobRow) -> JobRow:
    row = catalogue.jobs.cancel(row.id)
    if row.kind in KINDS:  # else of a newer release
        KINDS[row.kind].on_unsuccessful_end(catalogue, row)
    return row


def _finish_cancellation(services: Services, row: JobRow) -> None:
    """After a cancellation is stored: end the job if it runs here, else clean up, and notify its watchers."""
    event = services.jobs.running().get(row.id)
    if event is not None:
        event.set()  # its thread cleans up
    elif row.state == "cancelled" and row.kind in KINDS:
        KINDS[row.kind].clean(services, row)
    services.jobs.tell(row.id)


def withdraw(catalogue: Catalogue, key_id: str) -> list[JobRow]:
    """Cancel the unfinished jobs of a key, in the transaction that revokes it; returns the cancelled ones.

    A job that another key asked for too is handed over to it; maintenance jobs go on.
    """
    cancelled = []
    for row in catalogue.jobs.active_of_key(key_id):
        heir = catalogue.jobs.next_requester(row)
        if heir is not None:
            catalogue.jobs.hand_over(row, heir)
        elif row.is_requested:
            cancelled.append(_cancel_row(catalogue, row))
    return cancelled


def after_withdrawal(services: Services, cancelled: Sequence[JobRow]) -> None:
    """After `withdraw` is committed: end the jobs that run here, and clean up after the others."""
    for row in cancelled:
        _finish_cancellation(services, row)
