"""Runs tasks in a pool and yields their results as they complete.

Called by sweeps of trainings, matrices and the experiments of `benchmarks`. Results that must survive this process are
files, which callers look for before they run a task.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace

from registry.errors import Cancelled, InvalidParameter
from registry.tasks.process_pool import ProcessPool
from registry.tasks.ray_connection import ray_connection
from registry.tasks.task import RETRIES, TICK_SECONDS, Function, Pool, R, Task, TaskLost, UnfitMachine


@dataclass(frozen=True)
class _Attempt:
    index: int
    task: Task
    losses: int = 0


def run_tasks(
    pool: Pool,
    function: Function[R],
    tasks: Iterable[Task],
    *,
    progress: Callable[[int, int, int, str], object] = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, R | BaseException]]:
    """Yield the index of each task with its result, or with the exception it raised, as they complete.

    Tasks are started in order, and consumed from the iterable when they are started. A task whose process died is
    retried, up to RETRIES times; then its result is TaskLost. Running tasks are asked to stop when `should_stop`
    returns True, and when the caller stops iterating. Raises Cancelled in the first case, and Unavailable where no
    machine can run a task.
    """
    attempts = (_Attempt(index, task) for index, task in enumerate(tasks))
    retries: deque[_Attempt] = deque()
    running: dict[Future[R], _Attempt] = {}
    try:
        while True:
            # a process that dies ends the whole pool: a task that was lost is retried alone, to find the culprit
            is_alone = not pool.remote and any(attempt.losses for attempt in (*retries, *running.values()))
            size = 1 if is_alone else pool.size
            while len(running) < size:
                attempt = retries.popleft() if retries else next(attempts, None)
                if attempt is None:
                    break
                running[pool.submit(function, attempt.index, attempt.task)] = attempt
            if not running:
                return
            if should_stop():
                raise Cancelled("The work was cancelled.")
            done, _ = wait(running, TICK_SECONDS, FIRST_COMPLETED)
            for report in pool.reports():
                progress(*report)
            for future in done:
                attempt, error = running.pop(future), pool.error_of(future)
                if isinstance(error, TaskLost) and attempt.losses < RETRIES:
                    retries.append(replace(attempt, losses=attempt.losses + 1))
                elif isinstance(error, UnfitMachine):
                    retries.append(attempt)
                else:
                    yield attempt.index, future.result() if error is None else error
    finally:
        pool.stop()


@contextmanager
def open_pool(on: str | None, *, at_once: int | None, cores: int | None = None) -> Iterator[Pool]:
    """Open a pool of `at_once` processes (1 by default), or with `on` a Ray cluster, with `cores` for each task.

    `on` is `ray=HOST:PORT` of a cluster's head, or `ray` for a cluster on this machine that ends with the pool. Ray's
    output goes to stderr while the pool is open. Raises InvalidParameter, and what `ray_connection` raises.
    """
    if on is None:
        if cores is not None:
            raise InvalidParameter("--cores is of tasks on Ray: give --on ray as well.", param="cores")
        with ProcessPool(at_once or 1) as processes:
            yield processes
        return
    name, equals, address = on.partition("=")
    if name != "ray" or bool(equals) != bool(address):
        raise InvalidParameter(f"--on takes ray, or ray=HOST:PORT of a cluster's head, not {on[:200]!r}.", param="on")
    with redirect_stdout(sys.stderr), ray_connection(address or None):
        from registry.tasks.ray_pool import RayPool

        pool = RayPool(cores=cores or 1, at_once=at_once)
        try:
            yield pool
        finally:
            pool.stop()
