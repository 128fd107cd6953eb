"""Runs tasks in processes of this machine, which are reused for later tasks."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from typing import Any, Self

from registry.tasks.task import RETRIES, Function, R, Report, Reporter, Task, TaskLost, Watch

GRACE_SECONDS = 120.0
"""How long tasks may take to stop; a training saves its state."""
SPAWN = multiprocessing.get_context("spawn")


class ProcessPool:
    """A context manager of up to `size` processes; all are replaced when one dies."""

    remote = False

    def __init__(self, size: int, *, grace: float = GRACE_SECONDS) -> None:
        self.size, self._grace = size, grace
        self._running: set[Future[Any]] = set()
        self._start()

    def _start(self) -> None:
        self._other_children = set(multiprocessing.active_children())
        self._reports: SimpleQueue[Report] = SPAWN.SimpleQueue()
        stopped, self._stop = SPAWN.Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(self.size, SPAWN, initializer=_begin, initargs=(self._reports, stopped))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._executor.shutdown()

    def threads(self, *, of: int) -> int:
        """An equal share of `of`, at least 1."""
        return max(1, of // self.size)

    def submit(self, function: Function[R], index: int, task: Task) -> Future[R]:
        """Start a task."""
        try:
            future = self._executor.submit(_run, function, index, task)
        except BrokenProcessPool:
            self._start()
            future = self._executor.submit(_run, function, index, task)
        self._running.add(future)
        return future

    def error_of(self, future: Future[Any]) -> BaseException | None:
        """The error of a task that has ended, as in `Pool`."""
        self._running.remove(future)
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            return TaskLost(f"The process that ran it was killed, or crashed, {RETRIES + 1} times.")
        return error

    def reports(self) -> Iterator[Report]:
        """The progress reported since the last call."""
        while not self._reports.empty():
            yield self._reports.get()

    def stop(self) -> None:
        """Ask running tasks to stop; kill their processes after the grace period, or if the wait is interrupted."""
        if not self._running:
            return
        self._stop.close()
        try:
            wait(self._running, self._grace)
        finally:
            self._running.clear()
            for process in set(multiprocessing.active_children()) - self._other_children:
                process.kill()
            self._executor.shutdown()
            self._start()


# --- in a process of the pool -----------------------------------------------------------------------


class _Process:
    """State of a process from its parent: the queue of reports, and a connection that is closed when it must stop."""

    reports: SimpleQueue[Report]
    stopped: Connection


def _begin(reports: SimpleQueue[Report], stopped: Connection) -> None:
    _Process.reports, _Process.stopped = reports, stopped
    os.setsid()  # Ctrl-C in a terminal reaches the parent alone, which then asks to stop
    os.dup2(2, 1)  # stdout is for the command's output, not for what libraries print
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(function: Function[R], index: int, task: Task) -> R:
    return function(task.argument, Watch(task.shared, Reporter(index, _Process.reports.put), _Process.stopped.poll))
