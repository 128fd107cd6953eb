"""Train in a child process with its own base model and at lower priority, so that requests are not delayed.

`in_child` is the parent's side, called by the training job; `main` is the child's. A child whose server is gone saves
its training and ends.
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
from service.observability.logs import logged
from training.process import NICENESS, Child, Json, lower_priority, serve
from training.worker import WorkerRequest, WorkerSetup, begin

GRACE_SECONDS = 30.0
"""How long a child may take to save its training when it is ended."""
STOP_SECONDS = 4.0
"""How long it may take when the server stops; later steps are trained again."""


def in_child(setup: WorkerSetup, request: WorkerRequest, *, progress: Progress, private: Path) -> Json:
    """Train in a child process; returns its answer once the adapter is written.

    `progress` is called repeatedly and may raise to end the training, which is then saved. Raises the child's error
    with the path of the folder `private` replaced, and Unavailable for a child that crashed.
    """
    child = Child(
        "service.jobs.train_process",
        setup.model_dump(mode="json"),
        called="The process that trains",
        grace=GRACE_SECONDS,
    )
    steps = request.run.spec.recipe.steps

    def report(done: int, total: int, message: str) -> None:
        try:
            progress(done, total, message)
        except Interrupted:
            child.grace = STOP_SECONDS
            raise

    try:
        with unnamed(private):
            return child.ask(
                request.model_dump(mode="json"), report, waiting=(0, steps, "waiting for the training to start")
            )
    finally:
        child.end()


@contextmanager
def unnamed(private: Path) -> Iterator[None]:
    """Replace the folder's path by "the folder of the training" in errors raised while open."""
    try:
        yield
    except SoupError as error:
        error.message, *problems = (
            text.replace(str(private), "the folder of the training") for text in (error.message, *error.problems)
        )
        error.args, error.problems = (error.message,), tuple(problems)
        raise


def end_with_server() -> None:
    """Have this process end GRACE_SECONDS after its server is gone, and be killed first if memory runs out.

    A training notices the end of its server between two steps and saves itself. Longer work (validation, scores for
    pruning) is ended here.
    """
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000")
    poller = select.poll()
    poller.register(sys.stdin, 0)  # 0: only the hang-up, which is always reported

    def end() -> None:
        poller.poll()
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=end, name="soup-server-gone", daemon=True).start()


def main() -> None:
    """Run the child process."""
    lower_priority(NICENESS)
    end_with_server()
    serve(logged(begin), failed="The training failed on our side ({}).")


if __name__ == "__main__":
    main()
