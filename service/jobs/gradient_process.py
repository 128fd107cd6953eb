"""Computes gradients for cooks in a child process, with a base model of its own and at lower priority.

Gradients stay out of the engine: streams go on as ever, and what is cancelled is a process that ends.

`GradientProcess` is the parent's side, used by the job runner; `main` is the child's, which reads and writes weights in
the blob store. It ends with each task, and its memory is free again.
"""

from __future__ import annotations

import os
import threading

from registry.progress import Progress
from registry.spec import BaseEntry, Tuned, TuningRequest, Weighing, WeighingRequest
from service.jobs.train_process import NICENESS, outlive_nobody
from service.logs import configure_logging
from service.settings import Settings
from training.gradient_worker import GradientSetup, TuningTask, WeighingTask, begin
from training.process import TICK_SECONDS, Child, Json, serve


class GradientProcess:
    """One task at a time: each holds a base model."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._child: Child | None = None

    def weigh(self, entry: BaseEntry, request: WeighingRequest, *, progress: Progress) -> Weighing:
        """Weigh adapters; raises what weighing or `progress` raises, or Unavailable for a crash."""
        return Weighing.model_validate(self._done(entry, WeighingTask(request=request), progress))

    def tune(self, entry: BaseEntry, request: TuningRequest, *, progress: Progress) -> Tuned:
        """Tune a soup; raises what tuning or `progress` raises, or Unavailable for a crash."""
        return Tuned.model_validate(self._done(entry, TuningTask(request=request), progress))

    def _done(self, entry: BaseEntry, task: WeighingTask | TuningTask, progress: Progress) -> Json:
        """The answer to a task; the child has ended then."""
        settings = self._settings
        setup = GradientSetup(
            entry=entry, cache=settings.cache, blobs=settings.blobs_dir, threads=settings.threads
        ).model_dump(mode="json")
        while not self._lock.acquire(timeout=TICK_SECONDS):
            progress(0, 1, "waiting for another cook's gradients")
        self._child = Child("service.jobs.gradient_process", setup, called="The process that computes gradients")
        try:
            return self._child.ask(
                task.model_dump(mode="json"), progress, waiting=(0, 1, "waiting for the process to start")
            )
        finally:
            self._child.end()
            self._child = None
            self._lock.release()


def main() -> None:
    """The child."""
    os.nice(NICENESS)
    outlive_nobody()
    configure_logging("info")
    serve(begin, failed="The computation of gradients failed ({}); the server's log has the rest.")


if __name__ == "__main__":
    main()
