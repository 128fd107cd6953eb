"""The process that a training of the server runs in, with a base model of its own and at lower priority.

`in_child` is the parent's side, called by the training job; `main` is the child's. Requests are served meanwhile as
ever; a child whose server is gone saves its training and ends.
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
from service.job_board import Interrupted
from service.observability.logs import configure_logging
from training import worker
from training.process import NICENESS, Child, Json
from training.worker import WorkerRequest, WorkerSetup

GRACE_SECONDS = 30.0
"""How long a child may take to save the training that it is stopped in."""
STOP_SECONDS = 4.0
"""How long it may take where the server stops; what it has not saved by then is trained again."""


def in_child(setup: WorkerSetup, request: WorkerRequest, *, progress: Progress, private: Path) -> Json:
    """Train in a child process; gives its answer once the adapter is written.

    `progress` is called again and again, and may raise to end it; the training is saved then. Raises the child's
    error without the path of the folder `private` in it, and Unavailable for a child that ended without one.
    """
    nice = setup.model_copy(update={"niceness": NICENESS}).model_dump(mode="json")
    child = Child("service.jobs.train_process", nice, called="The process that trains", grace=GRACE_SECONDS)
    steps = request.run.spec.recipe.steps

    def heard(done: int, total: int, message: str) -> None:
        try:
            progress(done, total, message)
        except Interrupted:
            child.grace = STOP_SECONDS
            raise

    try:
        with unnamed(private):
            return child.ask(
                request.model_dump(mode="json"), heard, waiting=(0, steps, "waiting for the training to start")
            )
    finally:
        child.end()


@contextmanager
def unnamed(private: Path) -> Iterator[None]:
    """While open, errors are raised with "the folder of the training" instead of this folder's path."""
    try:
        yield
    except SoupError as error:
        error.message, *problems = (
            text.replace(str(private), "the folder of the training") for text in (error.message, *error.problems)
        )
        error.args, error.problems = (error.message,), tuple(problems)
        raise


def outlive_nobody() -> None:
    """Have this process end GRACE_SECONDS after its server is gone, and be the first to go where memory runs out.

    A training notices that between two steps, and saves. What may take hours in one piece (validation, scores for
    pruning) is ended here, as the server would have done.
    """
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000")
    watched = select.poll()
    watched.register(sys.stdin, 0)  # for no event but the closing of the other end, which is always told

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
