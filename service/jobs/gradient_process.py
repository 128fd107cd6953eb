"""Compute gradients for cooks in a child process with its own base model and at lower priority.

Gradients stay out of the engine: streams are not delayed, and a cancellation ends a process.

`GradientProcess` is the parent's side, used by the job runner; `main` is the child's, which reads weights
from the blob store; the parent stores what it computes. The child waits for the next task for
`gradients_idle_seconds`, so that consecutive cooks load the base model once; then it ends and frees its memory.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TypeVar

from registry.blobs import BlobStore, open_blobs
from registry.errors import Internal
from registry.names import sha256_digest
from registry.progress import Progress
from registry.spec import (
    BaseEntry,
    Frozen,
    MeasuredStatistic,
    StatisticRequest,
    Tuned,
    TuningRequest,
    Weighing,
    WeighingRequest,
)
from service.jobs.train_process import end_with_server
from service.observability.logs import logged
from service.settings import Settings
from training.gradient_worker import GradientSetup, begin
from training.process import CLEANUP_SECONDS, NICENESS, TICK_SECONDS, Child, Json, lower_priority, serve

NAME = "The process that computes gradients"
Result = TypeVar("Result", Tuned, MeasuredStatistic)


class GradientProcess:
    """One child process that runs one task at a time on one base model."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._setup: Json = {}
        self._tasks = 0
        self._idle_timer: threading.Timer | None = None

    def weigh(self, entry: BaseEntry, request: WeighingRequest, *, progress: Progress) -> Weighing:
        """Weigh adapters; raises what weighing or `progress` raises, or Unavailable for a crash."""
        return Weighing.model_validate(self._run(entry, _task("weigh", request), progress))

    def tune(self, entry: BaseEntry, request: TuningRequest, *, progress: Progress) -> Tuned:
        """Tune and store a soup; raises what tuning or `progress` raises, or Unavailable for a crash."""
        return self._run_and_store(entry, _task("tune", request), Tuned, progress)

    def measure(self, entry: BaseEntry, request: StatisticRequest, *, progress: Progress) -> MeasuredStatistic:
        """Compute and store a statistic; raises what computing it or `progress` raises, or Unavailable for a crash."""
        return self._run_and_store(entry, _task("measure", request), MeasuredStatistic, progress)

    def stop(self) -> None:
        """Kill the process, even during a task. A thread that waits for the database meanwhile cleans up afterwards."""
        child = self._child
        if child is not None:
            child.kill()
        if self._lock.acquire(timeout=CLEANUP_SECONDS):
            self._cancel_timer()
            self._end()
            self._lock.release()

    def _run_and_store(self, entry: BaseEntry, task: Json, kind: type[Result], progress: Progress) -> Result:
        """Run a task and store its tensors, if there are any.

        The child writes them to a temporary file, so that a child that is ended stores nothing.
        """
        blobs = open_blobs(self._settings.blob_place, make=False)
        with blobs.scratch() as file:
            result = kind.model_validate(self._run(entry, task | {"file": str(file)}, progress))
            if result.blob is not None:
                _store(blobs, file, result.blob)
        return result

    def _run(self, entry: BaseEntry, task: Json, progress: Progress) -> Json:
        """Run a task; the process of the previous task is reused if it has the same setup."""
        settings = self._settings
        setup = GradientSetup(
            entry=entry,
            cache=settings.cache,
            blobs=settings.blob_place,
            threads=settings.threads,
            log_level=settings.log_level,
        ).model_dump(mode="json")
        while not self._lock.acquire(timeout=TICK_SECONDS):
            progress(0, 1, "waiting for another cook's gradients")
        try:
            self._cancel_timer()
            if self._child is None or setup != self._setup:
                self._end()
                self._setup, self._child = setup, Child("service.jobs.gradient_process", setup, called=NAME)
            answer = self._child.ask(task, progress, waiting=(0, 1, "waiting for the process to start"))
            self._tasks += 1
            self._idle_timer = threading.Timer(settings.gradients_idle_seconds, self._end_after, args=[self._tasks])
            self._idle_timer.daemon = True
            self._idle_timer.start()
        except BaseException:  # never reuse a process after an error
            self._end()
            raise
        finally:
            self._lock.release()
        return answer

    def _cancel_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def _end_after(self, task: int) -> None:
        """End the process unless another task has run since: the timer may have fired while that held the lock."""
        with self._lock:
            if task == self._tasks:
                self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()


def _task(do: str, request: Frozen) -> Json:
    return {"do": do, "request": request.model_dump(mode="json")}


def _store(blobs: BlobStore, file: Path, digest: str) -> None:
    """Store a file that the child has written, as the blob that its answer names."""
    data = file.read_bytes()
    if sha256_digest(data) != digest:
        raise Internal(f"{NAME} answered {digest}, and wrote something else.")
    blobs.put_bytes(data)


def main() -> None:
    """Run the child process."""
    lower_priority(NICENESS)
    end_with_server()
    serve(logged(begin), failed="The computation of gradients failed ({}); the server's log has the rest.")


if __name__ == "__main__":
    main()
