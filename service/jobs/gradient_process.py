"""Computes gradients for cooks in a child process, with a base model of its own and at lower priority.

Gradients stay out of the engine: streams go on as ever, and what is cancelled is a process that ends.

`GradientProcess` is the parent's side, used by the job runner; `main` is the child's, which reads and writes weights in
the blob store, but for statistics, which the parent stores. It waits for the next task for a while
(`gradients_idle_seconds`), so that cooks one after the other do not each load the base model; then it ends, and its
memory is free again.
"""

from __future__ import annotations

import threading

from registry.blobs import open_blobs
from registry.errors import Internal
from registry.names import sha256_digest
from registry.progress import Progress
from registry.spec import (
    BaseEntry,
    MeasuredStatistic,
    StatisticRequest,
    Tuned,
    TuningRequest,
    Weighing,
    WeighingRequest,
)
from service.jobs.train_process import outlive_nobody
from service.observability.logs import configure_logging
from service.settings import Settings
from training.gradient_worker import GradientSetup, StatisticTask, TuningTask, WeighingTask, begin
from training.process import NICENESS, TICK_SECONDS, Child, Json, lower_priority, serve

CALLED = "The process that computes gradients"


class GradientProcess:
    """One process that does one task at a time, on one base model."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._setup: Json = {}
        self._tasks = 0

    def weigh(self, entry: BaseEntry, request: WeighingRequest, *, progress: Progress) -> Weighing:
        """Weigh adapters; raises what weighing or `progress` raises, or Unavailable for a crash."""
        return Weighing.model_validate(self._done(entry, WeighingTask(request=request), progress))

    def tune(self, entry: BaseEntry, request: TuningRequest, *, progress: Progress) -> Tuned:
        """Tune a soup; raises what tuning or `progress` raises, or Unavailable for a crash."""
        return Tuned.model_validate(self._done(entry, TuningTask(request=request), progress))

    def measure(self, entry: BaseEntry, request: StatisticRequest, *, progress: Progress) -> MeasuredStatistic:
        """Compute and store a statistic; raises what that or `progress` raises, or Unavailable for a crash.

        The child writes it to a file that goes with the task: one that is ended after it has written stores nothing.
        """
        blobs = open_blobs(self._settings.blob_place, make=False)
        with blobs.scratch() as file:
            answer = self._done(entry, StatisticTask(request=request, file=file), progress)
            found = MeasuredStatistic.model_validate(answer)
            data = file.read_bytes()
            if sha256_digest(data) != found.blob:
                raise Internal(f"{CALLED} answered {found.blob}, and wrote something else.")
            blobs.put_bytes(data)
        return found

    def stop(self) -> None:
        """End the process; called when no job is run any more."""
        with self._lock:
            self._end()

    def _done(self, entry: BaseEntry, task: WeighingTask | TuningTask | StatisticTask, progress: Progress) -> Json:
        """The answer to a task, of the process that did the one before where that had the same base model."""
        settings = self._settings
        setup = GradientSetup(
            entry=entry, cache=settings.cache, blobs=settings.blob_place, threads=settings.threads
        ).model_dump(mode="json")
        while not self._lock.acquire(timeout=TICK_SECONDS):
            progress(0, 1, "waiting for another cook's gradients")
        try:
            if self._child is None or setup != self._setup:
                self._end()
                self._setup, self._child = setup, Child("service.jobs.gradient_process", setup, called=CALLED)
            answer = self._child.ask(
                task.model_dump(mode="json"), progress, waiting=(0, 1, "waiting for the process to start")
            )
            self._tasks += 1
            ending = threading.Timer(settings.gradients_idle_seconds, self._end_after, args=[self._tasks])
            ending.daemon = True
            ending.start()
        except BaseException:  # whatever went wrong, the next task is not done by what it left behind
            self._end()
            raise
        finally:
            self._lock.release()
        return answer

    def _end_after(self, task: int) -> None:
        """End the process where this task was the last one."""
        with self._lock:
            if task == self._tasks:
                self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()


def main() -> None:
    """The child."""
    lower_priority(NICENESS)
    outlive_nobody()
    configure_logging("info")
    serve(begin, failed="The computation of gradients failed ({}); the server's log has the rest.")


if __name__ == "__main__":
    main()
