"""The process that a training of the server runs in: with a base model of its own, and at lower priority.

`in_child` is the parent's side, called by the training job; `main` is the child's. Who is being served notices
nothing of a training, and a child whose server is gone saves its training and ends.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from registry.errors import SoupError
from registry.progress import Progress
from service.logs import configure_logging
from training import worker
from training.process import Child, Json
from training.worker import WorkerRequest, WorkerSetup

NICENESS = 10
GRACE_SECONDS = 30.0
"""How long a child may take to save the training that it is stopped in."""


def in_child(setup: WorkerSetup, request: WorkerRequest, *, progress: Progress, private: Path) -> Json:
    """Train in a process, and give what it says of the training once the adapter is written.

    `progress` is called again and again, and may raise to end it; the training is saved then. Raises the child's
    error, in whose sentences nobody reads of the folder `private`, and Unavailable for a child that ended otherwise.
    """
    nice = setup.model_copy(update={"niceness": NICENESS}).model_dump(mode="json")
    child = Child("service.jobs.train_process", nice, called="The process that trains", grace=GRACE_SECONDS)
    steps = request.run.spec.recipe.steps
    try:
        with unnamed(private):
            return child.ask(
                request.model_dump(mode="json"), progress, waiting=(0, steps, "waiting for the training to start")
            )
    finally:
        child.end()


@contextmanager
def unnamed(private: Path) -> Iterator[None]:
    """While open, errors are raised with other words in the place of the folder's name."""
    try:
        yield
    except SoupError as error:
        error.message, *problems = (
            text.replace(str(private), "the folder of the training") for text in (error.message, *error.problems)
        )
        error.args, error.problems = (error.message,), tuple(problems)
        raise


def outlive_nobody() -> None:
    """End this process where the server is gone and the time to save is over, and first of all where memory runs out.

    A training looks for its server between two steps. What may take hours without one (validation, scores for
    pruning) is ended here, as the server would have done.
    """
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000")
    watched = select.poll()
    watched.register(sys.stdin, 0)  # of no event but that the other end is closed, which is always told

    def end() -> None:
        watched.poll()
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=end, name="soup-server-gone", daemon=True).start()


def main() -> None:
    """The process of one training."""
    outlive_nobody()
    configure_logging("info")
    worker.main()


if __name__ == "__main__":
    main()
