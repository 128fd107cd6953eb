"""Weighs adapters in a child process with a base model of its own and at lower priority.

Gradients stay out of the engine: streams go on as ever, and a cancelled weighing is a process that ends.

`WeighProcess` is the parent's side, used by the job runner; `main` is the child's, which reads weights from the blob
store. It ends with each weighing, and its memory is free again.
"""

from __future__ import annotations

import os
import threading

from registry.progress import Progress
from registry.spec import BaseEntry, Weighing, WeighingRequest
from service.jobs.train_process import NICENESS, outlive_nobody
from service.logs import configure_logging
from service.settings import Settings
from training.process import TICK_SECONDS, Child, serve
from training.weigh_worker import WeighSetup, begin


class WeighProcess:
    """One weighing at a time: each holds a base model."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._child: Child | None = None

    def weigh(self, entry: BaseEntry, request: WeighingRequest, *, progress: Progress) -> Weighing:
        """Weigh, and end the child; raises what the weighing or `progress` raises, or Unavailable for a crash."""
        settings = self._settings
        setup = WeighSetup(
            entry=entry, cache=settings.cache, blobs=settings.blobs_dir, threads=settings.threads
        ).model_dump(mode="json")
        while not self._lock.acquire(timeout=TICK_SECONDS):
            progress(0, 1, "waiting for another weighing to end")
        self._child = Child("service.jobs.weigh_process", setup, called="The process that weighs adapters")
        try:
            answer = self._child.ask(
                request.model_dump(mode="json"), progress, waiting=(0, 1, "waiting for the weighing to start")
            )
        finally:
            self._child.end()
            self._child = None
            self._lock.release()
        return Weighing.model_validate(answer)


def main() -> None:
    """The child."""
    os.nice(NICENESS)
    outlive_nobody()
    configure_logging("info")
    serve(begin, failed="The weighing failed ({}); the server's log has the rest.")


if __name__ == "__main__":
    main()
