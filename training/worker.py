"""A process that trains: a base model of its own, and one training after another as JSON lines ask for them.

Run by `parallel_sweep` for the cells of a grid (`python -m training.worker`), and by the server under the module
`service.jobs.train_process`. Its first line says which base model and how many threads; each further one is a training,
answered with its progress and then with what came of it. It stops in good order where its input ends: a training that
is under way is saved first.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from registry.errors import Cancelled, Internal, SoupError, as_dict
from registry.spec import BaseEntry, Frozen
from training.process import Answers, Json, asked_to_end, next_request
from training.train import Work

if TYPE_CHECKING:
    from registry.base_model import LoadedBase

log = logging.getLogger("soup.training")
TICK_SECONDS = 0.25


class Bench(Frozen):
    """The first line: the base model, and how it is run. `niceness` lowers the priority of the process."""

    entry: BaseEntry
    cache: Path | None = None
    threads: int | None = Field(default=None, ge=1)
    niceness: int = 0


class Task(Frozen):
    """A further line: a training; with `turn` it waits for that file's lock, and does not repeat what is made."""

    work: Work
    turn: Path | None = None


def serve(answers: Answers) -> None:
    """Do what the parent asks for, until it asks no more."""
    first = next_request()
    if first is None:
        return
    bench = Bench.model_validate(first)
    os.nice(bench.niceness)
    base: LoadedBase | None = None
    while (request := next_request()) is not None:
        try:
            base = base or _loaded(bench)
            answer = _made(Task.model_validate(request), base, answers)
        except SoupError as error:
            answer = {"error": as_dict(error)}
        except Exception as error:  # the parent must hear of it, whatever it is
            log.exception("a training failed")
            answer = {"error": as_dict(Internal(f"The training failed on our side ({type(error).__name__})."))}
        try:
            answers.send(answer)
        except BrokenPipeError:  # nobody is left to hear of it
            return


def _loaded(bench: Bench) -> LoadedBase:
    import torch

    from registry.base_model import load_base

    if bench.threads is not None:
        torch.set_num_threads(bench.threads)
    return load_base(bench.entry, cache_dir=bench.cache)


def _made(task: Task, base: LoadedBase, answers: Answers) -> Json:
    from training.train import do

    if task.turn is None:
        trained = do(task.work, base, progress=answers.progress, should_stop=asked_to_end)
        return {"made": {"resumed_at": trained.resumed_at, "note": trained.resume_note}}
    with _turn(task.turn, lambda: answers.progress(0, 0, "waiting for the same training in another process")):
        if task.work.out.exists():
            return {"made": {"resumed_at": None, "note": None}}
        trained = do(task.work, base, progress=answers.progress, should_stop=asked_to_end)
    return {"made": {"resumed_at": trained.resumed_at, "note": trained.resume_note}}


@contextmanager
def _turn(path: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Own the file's lock: one process at a time has the training that it stands for, also across a restart.

    A server that was killed leaves a child that is saving its training still. Raises Cancelled where the wait is
    ended. The lock is the operating system's, and gone with the process.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if asked_to_end():
                    raise Cancelled("Training was cancelled before it began.") from None
                waiting()
                time.sleep(TICK_SECONDS)
        yield
    finally:
        os.close(handle)


def main() -> None:
    """The process of a grid's cell."""
    serve(Answers())


if __name__ == "__main__":
    main()
