"""The child process that trains: loads a base model and runs one training after another for its parent.

Run by the server under the module `service.jobs.train_process`. When its input ends, it saves the running training and
stops.
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
from registry.errors import Cancelled, Unavailable
from registry.progress import Progress
from registry.spec import BaseEntry, Frozen
from training.process import TICK_SECONDS, Handle, Json, should_end
from training.request import TrainingRun
from training.train import train


class WorkerSetup(Frozen):
    """The first line of input: the base model, and the threads and log level of the process."""

    entry: BaseEntry
    cache: Path | None = None
    threads: int | None = Field(default=None, ge=1)
    log_level: str = "info"


class WorkerRequest(Frozen):
    """A further line: a training; with `turn` it waits for that file's lock and skips a finished training."""

    run: TrainingRun
    turn: Path | None = None


def begin(setup: Json) -> Handle:
    """Return the handler of requests to train; the base model is loaded at the first."""
    checked = WorkerSetup.model_validate(setup)
    if checked.threads is not None:
        torch.set_num_threads(checked.threads)
    base: LoadedBase | None = None

    def handle(request: Json, progress: Progress) -> Json:
        nonlocal base
        base = base or load_base(checked.entry, cache_dir=checked.cache)
        return answer(WorkerRequest.model_validate(request), base, progress)

    return handle


def answer(request: WorkerRequest, base: LoadedBase, progress: Progress) -> Json:
    """Train; return the step a checkpoint was resumed at, if any, and a note on changed versions."""

    def report(done: int, total: int, message: str) -> None:
        with suppress(BrokenPipeError):  # the parent is gone: `should_end` notices and the training is saved
            progress(done, total, message)

    with _turn(request.turn, lambda: report(0, 0, "waiting for the same training in another process")):
        if request.turn is not None and request.run.out.exists():
            return {"resumed_at": None, "note": None}
        trained = train(request.run, base, progress=report, should_stop=should_end)
    return {"resumed_at": trained.resumed_at, "note": trained.resume_note}


@contextmanager
def _turn(path: Path | None, waiting: Callable[[], object]) -> Iterator[None]:
    """Hold the file's lock, if one is named: one process at a time runs that training, also across a restart.

    The child of a killed server may still be saving. Raises Cancelled if the parent ends the wait, and Unavailable if
    the file cannot be locked. The lock is the operating system's and ends with the process.
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
            except BlockingIOError:
                if should_end():
                    raise Cancelled("Training was cancelled before it began.") from None
                waiting()
                time.sleep(TICK_SECONDS)
            except OSError as error:  # for instance a file system without locks
                raise Unavailable(f"{path} cannot be locked: {error.strerror or error}.") from error
        yield
    finally:
        os.close(handle)
