"""Notifications about jobs inside one process (queued, changed, to be cancelled), and counts of the jobs it ran.

Routes wake it after a commit that enqueued a job and watch for changes; the runner's threads wait for it and register
the jobs that run here. It knows ids only: the queue itself is `catalogue.jobs`. The runner also counts outcomes and
seconds for /metrics, whose labels are kinds of jobs and error codes.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from prometheus_client import Counter, Summary

from registry.errors import SoupError

Outcome = Literal["succeeded", "failed", "retried", "cancelled"]


class JobMetrics:
    """Counts and seconds of the attempts of one process."""

    def __init__(self) -> None:
        self.ended = Counter(
            "soup_jobs_ended", "Job attempts on this server, by outcome.", ("kind", "outcome"), registry=None
        )
        self.errors = Counter(
            "soup_job_errors", "Errors of job attempts on this server, by code.", ("code",), registry=None
        )
        self.seconds = Summary(
            "soup_job_seconds", "Seconds of job attempts on this server, by kind.", ("kind",), registry=None
        )


class Interrupted(SoupError):
    """The server is stopping: the job goes back to the queue. Raised by the progress of a job."""


class JobBoard:
    """The notifications of one process; any thread may use it."""

    def __init__(self) -> None:
        self._rang = threading.Condition()
        self._rung = 0
        self._watchers: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self._running: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self.metrics = JobMetrics()
        """Counts of the jobs that ran here."""
        self.closed = False
        """True once the server stops: no further job ends here."""

    @property
    def rung(self) -> int:
        """The number of wake-ups so far, which a thread reads before it checks the queue."""
        return self._rung

    def wake(self) -> None:
        """Wake the threads that wait: a job was enqueued."""
        with self._rang:
            self._rung += 1
            self._rang.notify_all()

    def wait(self, *, rung: int, seconds: float) -> None:
        """Wait for the next wake-up, at most `seconds`; returns immediately if there was one since `rung` was read."""
        with self._rang:
            if self._rung == rung:
                self._rang.wait(timeout=seconds)

    @contextmanager
    def watched(self, job_id: str, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback`, from any thread, whenever this job changes while open."""
        with self._lock:
            self._watchers[job_id].append(callback)
        try:
            yield
        finally:
            with self._lock:
                self._watchers[job_id].remove(callback)
                if not self._watchers[job_id]:
                    del self._watchers[job_id]

    def close(self) -> None:
        """Notify the watchers of jobs and the threads that run them that the server stops."""
        self.closed = True
        self.wake()
        with self._lock:
            callbacks = [callback for watching in self._watchers.values() for callback in watching]
        for callback in callbacks:
            callback()

    def tell(self, job_id: str) -> None:
        """Notify the watchers of this job that it has changed."""
        with self._lock:
            callbacks = list(self._watchers.get(job_id, ()))
        for callback in callbacks:
            callback()

    @contextmanager
    def runs(self, job_id: str) -> Iterator[threading.Event]:
        """Register this job as running here while open; the event is set if it is to end."""
        with self._lock:
            event = self._running[job_id] = threading.Event()
        try:
            yield event
        finally:
            with self._lock:
                del self._running[job_id]

    def running(self) -> Mapping[str, threading.Event]:
        """Return the jobs that run here with the events that end them."""
        with self._lock:
            return dict(self._running)
