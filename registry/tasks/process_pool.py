"""Runs tasks in processes of this machine, which are kept for later tasks, with what those left there."""

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
"""How long tasks may take to stop, a training to save its state."""
SPAWN = multiprocessing.get_context("spawn")


class ProcessPool:
    """Up to `size` processes until `with` ends; all are started anew where one dies."""

    remote = False

    def __init__(self, size: int, *, grace: float = GRACE_SECONDS) -> None:
        self.size, self._grace = size, grace
        self._running: set[Future[Any]] = set()
        self._start()

    def _start(self) -> None:
        self._others = set(multiprocessing.active_children())
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
        """As `Pool.error_of`."""
        self._running.remove(future)
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            return TaskLost(f"The process that ran it was killed, or crashed, {RETRIES + 1} times.")
        return error

    def reports(self) -> Iterator[Report]:
        """As `Pool.reports`."""
        while not self._reports.empty():
            yield self._reports.get()

    def stop(self) -> None:
        """Ask running tasks to stop; kill the processes after the grace, or where the wait is interrupted."""
        if not self._running:
            return
        self._stop.close()
        try:
            wait(self._running, self._grace)
        finally:
            self._running.clear()
            for process in set(multiprocessing.active_children()) - self._others:
                process.kill()
            self._executor.shutdown()
            self._start()


# --- in a process of the pool -----------------------------------------------------------------------


class _Process:
    """What the process has of its parent: where to report, and a connection that is at its end when it is to stop."""

    reports: SimpleQueue[Report]
    stopped: Connection


def _begin(reports: SimpleQueue[Report], stopped: Connection) -> None:
    _Process.reports, _Process.stopped = reports, stopped
    os.setsid()  # Ctrl-C in a terminal is for the parent, which then asks to stop
    os.dup2(2, 1)  # what a library prints is not the command's output
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(function: Function[R], index: int, task: Task) -> R:
    return function(task.argument, Watch(task.shared, Reporter(index, _Process.reports.put), _Process.stopped.poll))
