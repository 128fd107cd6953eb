"""Runs tasks on the Ray cluster that this process is connected to. All machines need this version of the package."""

from __future__ import annotations

import errno
import platform
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.queue import Queue

from registry.errors import Unavailable
from registry.tasks.ray_connection import check_cluster
from registry.tasks.task import RETRIES, Function, R, Report, Reporter, Task, TaskLost, UnfitMachine, Watch

NODE = "ray.io/node-id"
GRACE_SECONDS = 10.0
"""How long cancelled tasks may take to remove their files."""
SILENCE_SECONDS = 60.0
"""Seconds without a report after which the cluster is checked."""


class RayPool:
    """Runs tasks with `cores` processor cores each, `at_once` in parallel: by default as many as the cluster has."""

    remote = True

    def __init__(self, *, cores: int = 1, at_once: int | None = None, silence: float = SILENCE_SECONDS) -> None:
        self._cores, self._silence = cores, silence
        self._unfit: dict[str, Unavailable] = {}
        self._refs: dict[Future[Any], Any] = {}
        self._shared: dict[int, tuple[Any, Any]] = {}
        self._last_report = time.monotonic()
        self.size = at_once or self._capacity()
        # without Ray's retries, which repeat a task that runs out of memory endlessly
        self._task: Any = ray.remote(num_cpus=cores, max_retries=0)(_run)
        this_node = {NODE: ray.get_runtime_context().get_node_id()}  # it lives as long as this process
        self._reports = Queue(actor_options={"num_cpus": 0, "label_selector": this_node})

    def threads(self, *, of: int) -> int:  # noqa: ARG002 - of this machine
        """The number of cores of a task, whatever this machine has."""
        return self._cores

    def submit(self, function: Function[R], index: int, task: Task) -> Future[R]:
        """Start a task, on a machine that is not unfit; a shared value is sent to the cluster once."""
        if id(task.shared) not in self._shared:
            self._shared[id(task.shared)] = (task.shared, ray.put(task.shared))  # the object, to keep its id unique
        shared = self._shared[id(task.shared)][1]
        placement = {"label_selector": {NODE: f"!in({','.join(self._unfit)})"}} if self._unfit else {}
        ref: Any = self._task.options(**placement).remote(function, index, task.argument, shared, self._reports)
        future: Future[R] = ref.future()
        self._refs[future] = ref
        return future

    def error_of(self, future: Future[Any]) -> BaseException | None:
        """The error of a task that has ended; raises the machine's problem where no other machine has the cores."""
        del self._refs[future]
        error = future.exception()
        if isinstance(error, RayTaskError):
            error = error.cause
        elif isinstance(error, RayError):
            return TaskLost(
                f"Its process or machine was lost {RETRIES + 1} times, or lacks this version of adaptersoup with the "
                f"extra 'train' ({type(error).__name__}: {str(error).strip().splitlines()[-1]})."
            )
        if isinstance(error, UnfitMachine):
            self._unfit[error.machine] = error.problem
            self._capacity()
        return error

    def reports(self) -> Iterator[Report]:
        """The progress reported since the last call; raises Unavailable after silence if the cluster is gone."""
        if count := self._reports.qsize():
            self._last_report = time.monotonic()
            yield from self._reports.get_nowait_batch(count)
        elif time.monotonic() - self._last_report > self._silence:
            check_cluster(ray.get_runtime_context().gcs_address)
            self._capacity()
            self._last_report = time.monotonic()

    def _capacity(self) -> int:
        """The number of tasks that the fit machines have cores for; raises Unavailable for none."""
        nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in self._unfit]
        cores = [node["Resources"].get("CPU", 0.0) for node in nodes]
        if capacity := sum(int(count // self._cores) for count in cores):
            return capacity
        raise next(reversed(self._unfit.values()), None) or Unavailable(
            f"No machine of the Ray cluster has {self._cores} processor cores for a task: its {len(cores)} machines "
            f"have {', '.join(f'{count:g}' for count in cores)}."
        )

    def stop(self) -> None:
        """Cancel running tasks; those that do not end are killed when this process disconnects."""
        for ref in self._refs.values():
            ray.cancel(ref)
        wait(self._refs, GRACE_SECONDS)
        self._refs.clear()


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of a machine's disk, which make it unfit for any task."""


def _run(function: Function[R], index: int, argument: Any, shared: Any, reports: Queue) -> R:
    """Run a task in a process of the cluster, where `ray.cancel` raises KeyboardInterrupt."""
    try:
        return function(argument, Watch(shared, Reporter(index, reports.put_nowait), lambda: False))
    except (Unavailable, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno not in DISK_ERRORS:
            raise
        machine = ray.get_runtime_context().get_node_id()
        raise UnfitMachine(machine, Unavailable(f"On {platform.node()}: {problem}")) from None
