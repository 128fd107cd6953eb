"""Announcements about jobs inside one process: one was queued, one has changed, one is to be cancelled.

Routes ring it after a commit that enqueued something and listen for changes; the runner's threads wait for it and say
what runs here. It knows ids only: the queue itself is `catalogue.jobs`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from registry.errors import SoupError
from service.job_tally import JobTally


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
