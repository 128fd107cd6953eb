"""A task, what its function gets, and what a pool of processes or machines does for `run_tasks`.

What a task computes depends on its argument and its shared value alone: data or their digests, seeds, the number of
threads. So a task whose process died is run again, elsewhere too, and gives the same bytes on processors of one kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from registry.errors import Unavailable
from registry.progress import Progress

RETRIES = 2
"""How often a task is run again whose process or machine died."""
TICK_SECONDS = 0.25
"""How often a task reports its progress, and `run_tasks` looks whether it is to stop."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Task:
    """An argument, and a value that several tasks share as one object: a Ray cluster is sent it once."""

    argument: Any
    shared: Any = None


@dataclass(frozen=True)
class Watch:
    """What a function gets beside its argument: the shared value, and ways to report progress and to notice a stop."""

    shared: Any
    progress: Progress
    should_stop: Callable[[], bool]


Function = Callable[[Any, Watch], R]
"""A function that its module has by name. Argument, shared value and result can be pickled."""
Report = tuple[int, int, int, str]
"""(index of the task, done, total, message)."""


@dataclass
class Reporter:
    """The progress function of a task, which passes reports on a few times a second."""

    index: int
    put: Callable[[Report], object]
    last: float = 0.0

    def __call__(self, done: int, total: int, message: str) -> None:
        """Pass a report on, if the last one was long enough ago."""
        if time.monotonic() - self.last > TICK_SECONDS:
            self.last = time.monotonic()
            self.put((self.index, done, total, message))


class TaskLost(Unavailable):
    """The process or machine that ran a task died, or was killed."""


class UnfitMachine(Exception):
    """A machine of a cluster cannot run a task, for a problem that other machines need not have."""

    def __init__(self, machine: str, problem: Unavailable) -> None:
        super().__init__(machine, problem)
        self.machine, self.problem = machine, problem


class Pool(Protocol):
    """Runs up to `size` tasks at once. `remote` tasks do not see the files of this machine."""

    size: int
    remote: bool

    def threads(self, *, of: int) -> int:
        """How many threads a task computes on, where this process uses `of`."""

    def submit(self, function: Function[R], index: int, task: Task) -> Future[R]:
        """Start a task."""

    def error_of(self, future: Future[Any]) -> BaseException | None:
        """What a task that has ended raised; TaskLost where its process died, UnfitMachine where another may run it."""

    def reports(self) -> Iterable[Report]:
        """The progress reported since the last call."""

    def stop(self) -> None:
        """Ask running tasks to stop, and end those that do not."""
