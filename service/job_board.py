"""Announcements about jobs inside one process (queued, changed, to be cancelled), and what became of those it ran.

Routes ring it after a commit that enqueued something and listen for changes; the runner's threads wait for it and say
what runs here. It knows ids only: the queue itself is `catalogue.jobs`. The runner also counts ends and seconds for
/metrics, whose labels are kinds of jobs and codes of errors, both ours and few.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from registry.errors import SoupError

Outcome = Literal["succeeded", "failed", "retried", "cancelled"]


@dataclass(frozen=True)
class JobFigures:
    """Tries of jobs: their ends by kind and outcome, the codes of their errors, their number and seconds by kind."""

    ends: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    tries: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class JobTally:
    """The figures of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures = JobFigures()

    def ended(self, kind: str, outcome: Outcome, code: str | None = None) -> None:
        """A try of a job came to an end, with an error of this code where there is one."""
        with self._lock:
            self._figures.ends[kind, outcome] += 1
            if code is not None:
                self._figures.errors[code] += 1

    def took(self, kind: str, seconds: float) -> None:
        """A try of a job took so long, whatever came of it."""
        with self._lock:
            self._figures.tries[kind] += 1
            self._figures.seconds[kind] += seconds

    def figures(self) -> JobFigures:
        """The figures as they stand."""
        with self._lock:
            return copy.deepcopy(self._figures)


class Interrupted(SoupError):
    """The server is stopping: the job goes back to the queue. Raised by the progress of a job."""


class JobBoard:
    """The announcements of one process; any thread may use it."""

    def __init__(self) -> None:
        self._rang = threading.Condition()
        self._rung = 0
        self._watchers: dict[str, list[Callable[[], None]]] = defaultdict(list)
        self._running: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self.tally = JobTally()
        """What became of the jobs that ran here."""
        self.closed = False
        """Whether the server stops: nothing that is queued or running ends here any more."""

    @property
    def rung(self) -> int:
        """How often it was rung: what a thread remembers before it looks at the queue."""
        return self._rung

    def wake(self) -> None:
        """Ring: something was enqueued."""
        with self._rang:
            self._rung += 1
            self._rang.notify_all()

    def wait(self, *, rung: int, seconds: float) -> None:
        """Wait until it is rung, at most so long; not at all where it was since it had been rung `rung` times."""
        with self._rang:
            if self._rung == rung:
                self._rang.wait(timeout=seconds)

    @contextmanager
    def watched(self, job_id: str, callback: Callable[[], None]) -> Iterator[None]:
        """While open, `callback` is called, from any thread, whenever this job changes."""
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
        """Tell whoever waits for jobs, and the threads that run them, that the server stops."""
        self.closed = True
        self.wake()
        with self._lock:
            callbacks = [callback for watching in self._watchers.values() for callback in watching]
        for callback in callbacks:
            callback()

    def tell(self, job_id: str) -> None:
        """Tell whoever watches this job that it has changed."""
        with self._lock:
            callbacks = list(self._watchers.get(job_id, ()))
        for callback in callbacks:
            callback()

    @contextmanager
    def runs(self, job_id: str) -> Iterator[threading.Event]:
        """While open, this job runs here; the event says that it is to end."""
        with self._lock:
            event = self._running[job_id] = threading.Event()
        try:
            yield event
        finally:
            with self._lock:
                del self._running[job_id]

    def running(self) -> Mapping[str, threading.Event]:
        """The jobs that run here, with the events that end them."""
        with self._lock:
            return dict(self._running)
