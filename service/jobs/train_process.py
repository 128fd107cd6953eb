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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from registry.errors import Unavailable, rebuild
from service.logs import configure_logging
from training.process import Answers, Child
from training.worker import Bench, Task, serve

NICENESS = 10
TICK_SECONDS = 0.25
GRACE_SECONDS = 30.0
"""How long a child may take to save the training that it is stopped in."""


def in_child(bench: Bench, task: Task, *, progress: Callable[[int, int, str], None], private: Path) -> dict[str, Any]:
    """Train in a process, and give what it says of the training once the adapter is written.

    `progress` is called again and again, and may raise to end it; the training is saved then. Raises the child's
    error, in whose sentences nobody reads of the folder `private`, and Unavailable for a child that ended otherwise.
    """
    try:
        nice = bench.model_copy(update={"niceness": NICENESS})
        child = Child("service.jobs.train_process", nice.model_dump(mode="json"), task.model_dump(mode="json"))
    except OSError as error:
        raise Unavailable("The process that trains could not be started; try again.") from error
    said: tuple[int, int, str] = (0, task.work.spec.recipe.steps, "waiting for the training to start")
    try:
        while True:
            for answer in child.answers(TICK_SECONDS):
                if "progress" not in answer:
                    return _made(answer, private)
                said = tuple(answer["progress"])
            progress(*said)  # also when the child is silent: this is where a cancellation is raised
    except EOFError as ended:
        raise Unavailable(f"The process that trains ended with status {ended.args[0]}; try again.") from ended
    finally:
        child.end(grace=GRACE_SECONDS)


def _made(answer: dict[str, Any], private: Path) -> dict[str, Any]:
    if "error" not in answer:
        return dict(answer["made"])
    code, message, param, problems = (answer["error"][name] for name in ("code", "message", "param", "problems"))
    hidden = [text.replace(str(private), "the folder of the training") for text in (message, *problems)]
    raise rebuild(code, hidden[0], param=param, problems=hidden[1:])


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
    answers = Answers()
    configure_logging("info")
    serve(answers)


if __name__ == "__main__":
    main()
