"""Tasks, the arguments of their functions, and the interface of a pool that runs them.

The result of a task depends on its argument and its shared value alone: data or their digests, seeds, the number of
threads. So a task whose process died can be run again anywhere, with the same bytes on processors of one kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from registry.errors import Cancelled, Unavailable
from registry.progress import Progress

RETRIES = 2
"""How often a task is retried whose process or machine died."""
TICK_SECONDS = 0.25
"""How often a task reports its progress, and `run_tasks` calls `should_stop`."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Task:
    """An argument, and a value that several tasks share as one object, sent to a Ray cluster once."""

    argument: Any
    shared: Any = None


@dataclass(frozen=True)
class Watch:
    """A function's second argument: the shared value, and functions to report progress and to check for a stop."""

    shared: Any
    progress: Progress
    should_stop: Callable[[], bool]

    def raise_if_stopped(self, *_progress: int) -> None:
        """Raise Cancelled if the task is to stop; for functions that take a progress function."""
        if self.should_stop():
            raise Cancelled("The task was cancelled.")


Function = Callable[[Any, Watch], R]
"""A function at module level; its argument, shared value and result can be pickled."""
Report = tuple[int, int, int, str]
"""(index of the task, done, total, message)."""


@dataclass
class Reporter:
    """The progress function of a task, which sends a few reports a second."""

    index: int
    put: Callable[[Report], object]
    last_sent: float = 0.0

    def __call__(self, done: int, total: int, message: str) -> None:
        """Send a report, unless the last one was too recent."""
        if time.monotonic() - self.last_sent > TICK_SECONDS:
            self.last_sent = time.monotonic()
            self.put((self.index, done, total, message))


class TaskLost(Unavailable):
    """The process or machine that ran a task died, or was killed."""


class UnfitMachine(Exception):
    """A machine of a cluster cannot run a task, for a reason that may not apply to other machines."""

    def __init__(self, machine: str, problem: Unavailable) -> None:
        super().__init__(machine, problem)
        self.machine, self.problem = machine, problem


class Pool(Protocol):
    """Runs up to `size` tasks in parallel. `remote` tasks have no access to this machine's files."""

    size: int
    remote: bool

    def threads(self, *, of: int) -> int:
        """The number of threads of a task, where this process uses `of`."""

    def submit(self, function: Function[R], index: int, task: Task) -> Future[R]:
        """Start a task."""

    def error_of(self, future: Future[Any]) -> BaseException | None:
        """The error of a task that has ended: TaskLost if its process died, UnfitMachine if another may run it."""

    def reports(self) -> Iterable[Report]:
        """The progress reported since the last call."""

    def stop(self) -> None:
        """Ask running tasks to stop, and kill those that do not."""
