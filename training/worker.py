"""A process that trains: a base model of its own, and one training after another as its parent asks for them.

Run by the server under the module `service.jobs.train_process`. It stops in good order where its input ends: a training
under way is saved first.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from pydantic import Field

from registry.base_model import LoadedBase, load_base
from registry.errors import Cancelled
from registry.progress import Progress
from registry.spec import BaseEntry, Frozen
from training.process import TICK_SECONDS, Handle, Json, asked_to_end, lower_priority, serve
from training.request import TrainingRun
from training.train import train


class WorkerSetup(Frozen):
    """The first line: the base model, and how it is run. `niceness` lowers the priority of the process."""

    entry: BaseEntry
    cache: Path | None = None
    threads: int | None = Field(default=None, ge=1)
    niceness: int = 0


class WorkerRequest(Frozen):
    """A further line: a training; with `turn` it waits for that file's lock, and does not repeat what is made."""

    run: TrainingRun
    turn: Path | None = None


def begin(setup: Json) -> Handle:
    """What answers requests to train, on a base model that is loaded with the first; raises what a training does."""
    given = WorkerSetup.model_validate(setup)
    lower_priority(given.niceness)
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    base: LoadedBase | None = None

    def handle(request: Json, progress: Progress) -> Json:
        nonlocal base
        base = base or load_base(given.entry, cache_dir=given.cache)
        return answer(WorkerRequest.model_validate(request), base, progress)

    return handle


def answer(request: WorkerRequest, base: LoadedBase, progress: Progress) -> Json:
    """Train, and say from which step a checkpoint was gone on from, if any, and what was another then."""

    def report(done: int, total: int, message: str) -> None:
        with suppress(BrokenPipeError):  # `asked_to_end` notices that the parent is gone, and the training is saved
            progress(done, total, message)

    with _turn(request.turn, lambda: report(0, 0, "waiting for the same training in another process")):
        if request.turn is not None and request.run.out.exists():
            return {"resumed_at": None, "note": None}
        trained = train(request.run, base, progress=report, should_stop=asked_to_end)
    return {"resumed_at": trained.resumed_at, "note": trained.resume_note}


@contextmanager
def _turn(path: Path | None, waiting: Callable[[], object]) -> Iterator[None]:
    """Own the file's lock, if one is named: one process at a time has that training, also across a restart.

    A server that was killed leaves a child that is saving its training still. Raises Cancelled where the wait is
    ended. The lock is the operating system's, and gone with the process.
    """
    if path is None:
        yield
        return
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
    """The process of a server's training."""
    serve(begin, failed="The training failed on our side ({}).")
