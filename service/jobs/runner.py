"""The runner of queued jobs (`catalogue.jobs`): claims, heartbeats, retries, cancellation; kinds are in `jobs.kinds`.

Built by the runtime, which starts and stops its threads; routes call `cancel`, and ring `job_board`. Jobs survive a
restart: what ran when the process died is claimed again once its lease is over, or at once where this process is the
only owner of the data.
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
from registry.cores import use_one
from registry.errors import Busy, Cancelled, Internal, SoupError, Unavailable, as_dict, rebuild
from registry.lifecycle.collect import collect
from registry.progress import Progress
from service.job_board import Interrupted, Outcome
from service.jobs.clock_steps import ClockSteps
from service.jobs.contract import JobContext, Lane, workers_of
from service.jobs.fit_process import FitProcess
from service.jobs.gradient_process import GradientProcess
from service.jobs.kinds import KINDS
from service.jobs.training_folder import sweep
from service.jobs.training_requests import blobs_in_use
from service.observability.logs import describe
from service.parts import Services

log = logging.getLogger("soup.jobs")
IDLE_SECONDS = 1.0
STOP_SECONDS = 6.0
"""How long jobs may take to notice that the server stops, and to save what they have done."""
PROGRESS_SECONDS = 0.5
RETRY_SECONDS = 2.0
"""Before the first retry; doubled for each further one."""
FINAL = frozenset({"succeeded", "failed", "cancelled"})
TRANSIENT = (Busy, Unavailable)


class JobRunner:
    """Threads that run jobs, one at a time each, those of each lane apart: no cook waits behind a fit or an embedding.

    `settings.job_workers` cook, and as many embed; one fits and one searches, in the one process for that.
    """

    def __init__(self, services: Services, *, sole_owner: bool) -> None:
        self.services = services
        self._settings = services.settings
        self._database = services.registry.database
        self._board = services.jobs
        self._sole_owner = sole_owner
        self._name = f"worker-{uuid.uuid4().hex[:12]}"
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._claimable = True
        self._claiming = threading.Lock()
        """False while the database does not answer: the log says that once, not every second of an outage."""
        self._clock = ClockSteps()
        self.fitting = FitProcess(self._database, self._settings.database, self._settings.blob_place)
        self.computing = GradientProcess(self._settings)

    def start(self) -> None:
        """Put back what a dead process left running, drop what nobody went on with, start workers and heartbeat.

        Does nothing once it is stopping.
        """
        if self._stopping.is_set():
            return
        with self._database.write() as catalogue:
            catalogue.jobs.requeue_expired(_now() + timedelta(days=3650) if self._sole_owner else _now())
        sweep(self._settings.trainings_dir, older_than=self._settings.keep_training_seconds)
        self._sweep_uploads()
        lanes = [lane for lane, count in workers_of(self._settings).items() for _ in range(count)]
        loops: list[Callable[[], None]] = [partial(self._work, lane) for lane in lanes]
        loops += [self._beat] if self._settings.role == "api" else [self._beat, self._collect]
        self._threads = [
            threading.Thread(target=loop, name=f"soup-jobs-{number}", daemon=True) for number, loop in enumerate(loops)
        ]
        for thread in self._threads:
            thread.start()

    def begin_stop(self) -> None:
        """Have what runs go back to the queue at its next word; who waits for a job hears that it will not end now."""
        self._stopping.set()
        self._board.close()

    def stop(self, *, seconds: float = STOP_SECONDS) -> bool:
        """Send running jobs back to the queue and end the threads; False where some are still at work after so long.

        Jobs of those are given back too: they are run again, and whatever their threads still do ends nothing.
        """
        self.begin_stop()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        ended = not any(thread.is_alive() for thread in self._threads)
        for job_id in () if ended else self._board.running():
            log.warning("a job is given back although its thread is at work", extra={"fields": {"job": job_id}})
            with suppress(Busy, Unavailable):  # then its lease ends, or the next server finds it
                self._store(partial(Jobs.release, id=job_id, worker=self._name))
        self._threads = []
        self.fitting.stop()
        self.computing.stop()
        return ended

    # --- the worker threads ---------------------------------------------------------------------

    def _work(self, lane: Lane) -> None:
        use_one()
        while not self._stopping.is_set():
            rung = self._board.rung
            row = self._claim(lane)
            if row is None:
                self._board.wait(rung=rung, seconds=IDLE_SECONDS)
                continue
            try:
                self._run(row)
            except (Busy, Unavailable) as error:  # its end could not be stored: it is run again after its lease
                fields = {"job": row.id, "kind": row.kind}
                log.warning("the end of a job is not stored: %s", error.message, extra={"fields": fields})
            except Exception:
                log.exception("ending a job failed", extra={"fields": {"job": row.id, "kind": row.kind}})

    def _claim(self, lane: Lane) -> JobRow | None:
        blobs = self.services.registry.blobs
        if blobs.is_failing and blobs.probe() is not None:
            return None  # every job needs them: a job that fails a few times for it would be lost
        kinds = [name for name, kind in KINDS.items() if kind.lane == lane]
        try:
            with self._database.write() as catalogue:
                row = catalogue.jobs.claim(self._name, kinds, self._settings.job_lease_seconds, _now(), lane=lane)
        except (Busy, Unavailable) as error:  # the queue is not lost with the connection to it
            if self._is_news(claimable=False):
                log.warning("no job can be claimed: %s", error.message)
        except Exception:
            log.exception("claiming a job failed")
        else:
            if self._is_news(claimable=True):
                log.info("jobs can be claimed again")
            return row
        return None

    def _is_news(self, *, claimable: bool) -> bool:
        """Whether jobs could be claimed until now where they cannot any more, or the other way; one thread hears so."""
        with self._claiming:
            changed, self._claimable = claimable != self._claimable, claimable
        return changed

    def _run(self, row: JobRow) -> None:
        """Run a claimed job to its end, and remove what only it needed; not where it goes on elsewhere."""
        began = time.monotonic()
        tracing = self.services.tracing
        span = nullcontext() if tracing is None else tracing.job(row.kind, row.id, row.traceparent)
        with self._board.runs(row.id) as cancelled, span:
            ended = self._attempt(row, self._progress(row, cancelled))
        self._board.tally.took(row.kind, time.monotonic() - began)
        try:
            if ended:
                KINDS[row.kind].clean(self.services, row)
        finally:
            self._board.tell(row.id)

    def _attempt(self, row: JobRow, progress: Progress) -> bool:
        """Try the job once; True when it ended for good, by us or by whoever cancelled it."""
        ended, most = row.failures + self._crashes(row), self._settings.job_attempts
        again = RETRY_SECONDS * 2.0**ended if ended + 1 < most else None
        try:
            if ended >= most:
                raise Internal(f"The process that ran it ended without a word, {row.crashes} times.")
            result = KINDS[row.kind].run(JobContext(self.services, self.fitting, self.computing, row, progress))
            if self._succeed(row, result):
                self._ended(row.kind, "succeeded")
                return True
            return self._ended_elsewhere(row)
        except Interrupted:
            self._store(lambda jobs: jobs.release(row.id, self._name))
            return False
        except Cancelled as error:
            if not self._ended_elsewhere(row):
                return self._fail(row, error, retry_in=None)
            self._store(lambda jobs: self._took(jobs, row))
            return True
        except SoupError as error:
            return self._fail(row, error, retry_in=again if isinstance(error, TRANSIENT) else None)
        except Exception as error:
            internal = Internal(f"The job failed on our side ({type(error).__name__}); the server's log has the rest.")
            return self._fail(row, internal, retry_in=again, seen=error)

    def _succeed(self, row: JobRow, result: dict[str, Any]) -> bool:
        """Store the result; False where the job is no longer ours to end."""
        with self._database.write() as catalogue:
            self._took(catalogue.jobs, row)
            return catalogue.jobs.succeed(row.id, result, worker=self._name)

    def _took(self, jobs: Jobs, row: JobRow) -> bool:
        """Count the time that a job took for its namespace, whatever has become of it."""
        return jobs.charge_lane(KINDS[row.kind].lane, row, _now())

    def _ended(self, kind: str, outcome: Outcome, code: str | None = None) -> None:
        """Count how a try ended, and say so of its span."""
        self._board.tally.ended(kind, outcome, code)
        span = get_current_span()
        span.set_attributes({"soup.job.outcome": outcome} | ({} if code is None else {"error.type": code}))
        if outcome == "failed":
            span.set_status(StatusCode.ERROR)

    def _crashes(self, row: JobRow) -> int:
        """How often its process ended under a job without that it came further: those before are no fault of its."""
        if not row.crashes:
            return 0
        reached = KINDS[row.kind].reached(self.services, row)
        forgiven = self._store(lambda jobs: jobs.forgive_crashes(row.id, reached, worker=self._name))
        return 0 if forgiven else row.crashes

    def _fail(self, row: JobRow, error: SoupError, *, retry_in: float | None, seen: Exception | None = None) -> bool:
        """Store the failure, and log it once; True when the job ended with it, or was cancelled before.

        `seen` is what nobody foresaw, where `error` stands for it: the log has its class and its places.
        """
        details = describe(seen or error) if isinstance(error, Internal) else {}
        level = logging.WARNING if seen is None else logging.ERROR
        log.log(level, "job failed", extra={"fields": {"job": row.id, "kind": row.kind, "code": error.code, **details}})
        with self._database.write() as catalogue:
            self._took(catalogue.jobs, row)
            ours = catalogue.jobs.fail(row.id, as_dict(error), retry_in, worker=self._name)
            if ours and retry_in is None:
                KINDS[row.kind].ended_without(catalogue, row)
        if not ours:
            return self._ended_elsewhere(row)
        self._ended(row.kind, "failed" if retry_in is None else "retried", error.code)
        return retry_in is None

    def _ended_elsewhere(self, row: JobRow) -> bool:
        """Whether it was cancelled; else another worker has it now."""
        with self._database.read() as catalogue:
            cancelled = catalogue.jobs.get(None, row.id).state == "cancelled"
        if cancelled:
            self._ended(row.kind, "cancelled")
        return cancelled

    def _store(self, change: Callable[[Jobs], bool]) -> bool:
        """One change of a job's row in a transaction of its own; False when it is no longer ours to change."""
        with self._database.write() as catalogue:
            return change(catalogue.jobs)

    def _progress(self, row: JobRow, cancelled: threading.Event) -> Progress:
        """The callable that a job reports to: stores at most twice a second, and raises when the job is to end."""
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
        """Store how far a job is and tell who watches. Raises Cancelled where it is no longer ours, or Interrupted."""
        if self._stopping.is_set():
            raise Interrupted("The server is stopping; the job goes on when it is back.")
        try:
            ours = self._store(
                lambda jobs: jobs.progress(row.id, done=done, total=total, message=message, worker=self._name)
            )
        except (Busy, Unavailable) as error:  # nothing is lost with a number; the work goes on
            log.warning("progress is not stored: %s", error.message)
            return
        if not ours:
            raise Cancelled("The job was cancelled.")
        self._board.tell(row.id)

    def _beat(self) -> None:
        """Prolong the leases of what runs here, and notice what another process cancelled."""
        while not self._stopping.wait(self._settings.job_lease_seconds / 4):
            running = self._board.running()
            try:
                with self._database.write() as catalogue:
                    for job_id, cancelled in running.items():
                        if not catalogue.jobs.heartbeat(job_id, self._name, self._settings.job_lease_seconds, _now()):
                            cancelled.set()
                    catalogue.jobs.requeue_expired(_now())
            except (Busy, Unavailable) as error:
                log.warning("no heartbeat: %s", error.message)
            except Exception:
                log.exception("heartbeat failed")
            self._sweep_uploads()

    def _sweep_uploads(self) -> None:
        """Remove unfinished uploads that have expired; they wait where database or folder are not there."""
        try:
            if self._clock.is_steady():
                self.services.uploads.sweep()
        except (Busy, Unavailable) as error:
            log.warning("unfinished uploads are not swept: %s", error.message)
        except Exception:
            log.exception("sweeping unfinished uploads failed")

    def _collect(self) -> None:
        """Remove what is due, from time to time; a start leaves servers time to come up first."""
        while not self._stopping.wait(self._settings.collect_seconds):
            if not self._clock.is_steady():
                continue
            try:
                collect(self.services.registry, _now(), used=blobs_in_use, progress=self._go_on)
            except Interrupted:
                return
            except (Busy, Unavailable) as error:
                log.warning("nothing more is collected now: %s", error.message)
            except Exception:
                log.exception("collecting failed")

    def _go_on(self, *_: object) -> None:
        if self._stopping.is_set():
            raise Interrupted("The server is stopping.")


def _now() -> datetime:
    return datetime.now(UTC)


def cancel(services: Services, caller: Caller, job_id: str) -> JobRow:
    """Cancel a queued or running job that the caller sees; one that ended stays as it is. Raises NotFound."""
    with services.registry.database.write() as catalogue:
        row = catalogue.jobs.get(caller.namespaces, job_id)
        if row.state not in FINAL:
            caller.audit(catalogue, "job.cancel", row.id, namespace=row.namespace, kind=row.kind)
            row = _cancelled(catalogue, row)
    _told(services, row)
    return row


def _cancelled(catalogue: Catalogue, row: JobRow) -> JobRow:
    row = catalogue.jobs.cancel(row.id)
    KINDS[row.kind].ended_without(catalogue, row)
    return row


def _told(services: Services, row: JobRow) -> None:
    """Once a cancellation is stored: end what runs here, or clean up, and tell who watches."""
    event = services.jobs.running().get(row.id)
    if event is not None:
        event.set()  # whoever runs it cleans up
    elif row.state == "cancelled":
        KINDS[row.kind].clean(services, row)
    services.jobs.tell(row.id)


def withdraw(catalogue: Catalogue, key_id: str) -> list[JobRow]:
    """Cancel what a key that is revoked has queued or running, in the transaction that does so; gives what was.

    What another key asked for too goes on as that one's; so does what keeps stored adapters and their pools in order.
    """
    cancelled = []
    for row in catalogue.jobs.active_of_key(key_id):
        heir = catalogue.jobs.next_requester(row)
        if heir is not None:
            catalogue.jobs.hand_over(row, heir)
        elif not KINDS[row.kind].upkeep(row):
            cancelled.append(_cancelled(catalogue, row))
    return cancelled


def after_withdrawal(services: Services, cancelled: Sequence[JobRow]) -> None:
    """Once that is stored: end what of it runs here, and clean up after the rest."""
    for row in cancelled:
        _told(services, row)


def result_of(row: JobRow) -> dict[str, Any]:
    """The result of a job that ended; raises the error it ended with."""
    if row.state == "succeeded":
        return row.result or {}
    if row.state == "cancelled":
        raise Cancelled(f"Job {row.id} was cancelled.")
    error = row.error or {}
    raise rebuild(
        str(error.get("code", "internal")),
        str(error.get("message", "The job failed.")),
        param=error.get("param"),
        problems=error.get("problems", ()),
    )
