"""Pieces of work that tests run at every place; a folder, where one is named, is how they and the tests speak."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from registry.errors import Cancelled, InvalidParameter, Unavailable
from registry.pieces import MachineProblem, Watch, own_disk
from registry.pieces.contract import Work


def squared(given: int, _watch: Watch) -> int:
    """The square of a number."""
    return given * given


def whose(_given: object, _watch: Watch) -> int:
    """The process that it is run in."""
    return os.getpid()


class Texts:
    """Some texts; how often they were pickled is counted in the process that does it."""

    pickled = 0

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def __getstate__(self) -> object:
        Texts.pickled += 1
        return vars(self)


def reads(given: int, watch: Watch) -> str | None:
    """One of the texts that it shares; None where it shares nothing."""
    return None if watch.shared is None else str(watch.shared.texts[given])


def reads_after_deaths(given: tuple[Path, str, int], watch: Watch) -> str | None:
    """Kills its process as `dies` does, and reads then."""
    dies(given, watch)
    return reads(0, watch)


def measured(given: bytes, _watch: Watch) -> tuple[int, bytes]:
    """Bytes, there and back."""
    return len(given), given[::-1]


def refused(given: tuple[Path, str], _watch: Watch) -> None:
    """Raises InvalidParameter, and notes that it was tried."""
    folder, name = given
    _note(folder, name)
    raise InvalidParameter(f"{name} cannot be had.", param="name", problems=["It is not there."])


def broken(given: object, _watch: Watch) -> None:
    """Raises what is no error of ours."""
    raise ZeroDivisionError(given)


def leaves(given: int, _watch: Watch) -> None:
    """Asks its process to end, as a library does that gives up."""
    raise SystemExit(given)


def unfit(given: Path, _watch: Watch) -> str:
    """Finds the machine that it is run on unfit the first time."""
    if _note(given, "unfit") == 1:
        raise MachineProblem(Unavailable("On this machine it is not there."))
    return "elsewhere"


def unfit_there(given: str, watch: Watch) -> None:
    """Finds one node of a Ray cluster unfit, and on others says that it is at work until it is asked to stop."""
    from ray import get_runtime_context

    if get_runtime_context().get_node_id() == given:
        raise MachineProblem(Unavailable("On this machine it is not there."))
    while not watch.should_stop():
        watch.progress(1, 2, "at work")
        time.sleep(0.01)


def full(_given: object, _watch: Watch) -> None:
    """Writes to a disk that is full."""
    with own_disk():
        Path("/dev/full").write_text("too much")


def full_here(given: Path, watch: Watch) -> str:
    """Finds the disk of the machine that it is run on full the first time."""
    if _note(given, "full") == 1:
        full(None, watch)
    return "elsewhere"


def dies(given: tuple[Path, str, int], _watch: Watch) -> str:
    """Kills its process the first so many times, and then gives how often it was begun."""
    folder, name, deaths = given
    times = _note(folder, name)
    if times <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{name}, try {times}"


def waits(given: tuple[Path, str], watch: Watch) -> None:
    """Says how far it is until it is asked to stop, and notes that it has stopped in good order."""
    folder, name = given
    _note(folder, name)
    turn = 0
    while not watch.should_stop():
        turn += 1
        watch.progress(min(turn, 9), 10, "waiting")
        time.sleep(0.01)
    (folder / f"{name} stopped").touch()
    raise Cancelled("It was asked to stop.")


def waits_for_others(given: tuple[Path, str, int], watch: Watch) -> int:
    """Ends when so many are at work at the same time, or it is asked to stop; gives how many there are."""
    folder, name, others = given
    _note(folder, name)
    while (at_work := len(list(folder.iterdir()))) < others and not watch.should_stop():
        time.sleep(0.01)
    return at_work


def deaf(given: tuple[Path, str], _watch: Watch) -> None:
    """Never stops by itself."""
    folder, name = given
    (folder / f"{name} {os.getpid()}").touch()
    while True:
        time.sleep(0.01)


@dataclass(frozen=True)
class HeldOnTheWay:
    """A piece's work, which goes no further than where it first says that something is done, until a file is there."""

    work: Work[Any]
    until: Path

    def __call__(self, given: Any, watch: Watch) -> Any:
        """What the work gives."""

        def held(done: int, total: int, message: str) -> None:
            watch.progress(done, total, message)
            while done and not self.until.exists() and not watch.should_stop():
                time.sleep(0.01)

        return self.work(given, replace(watch, progress=held))


def _note(folder: Path, name: str) -> int:
    """Note that a piece was begun; gives how often."""
    with (folder / name).open("a") as file:
        file.write("begun\n")
    return len((folder / name).read_text().splitlines())
