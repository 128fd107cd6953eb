"""Functions that tests run as tasks; a folder, where one is given, is how they and the tests speak."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from registry.errors import Cancelled, InvalidParameter
from registry.tasks.task import Function, Watch


def squared(number: int, watch: Watch) -> tuple[int, Any]:
    """The square of a number, and the shared value."""
    sys.stdout.write("printed by a library")
    return number * number, watch.shared


def refused(folder: Path, _watch: Watch) -> None:
    """Raises InvalidParameter, and notes that it was tried."""
    _note(folder, "refused")
    raise InvalidParameter("It cannot be had.", param="name", problems=["It is not there."])


def leaves(status: int, _watch: Watch) -> None:
    """Asks its process to end, as a library does that gives up."""
    raise SystemExit(status)


def full(folder: Path, _watch: Watch) -> int:
    """Finds the disk full the first time it runs."""
    if (times := _note(folder, "full")) == 1:
        Path("/dev/full").write_text("too much")
    return times


def dies(argument: tuple[Path, str, int], _watch: Watch) -> int:
    """Kills its process the first so many times; then returns how often it was started."""
    folder, name, deaths = argument
    if (times := _note(folder, name)) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return times


def waits(argument: tuple[Path, str], watch: Watch) -> None:
    """Reports progress until it is asked to stop, or interrupted, and notes that it was."""
    folder, name = argument
    _note(folder, f"{name} {os.getpid()}")
    try:
        while not watch.should_stop():
            watch.progress(1, 10, "waiting")
            time.sleep(0.01)
    finally:
        (folder / f"{name} stopped").touch()
    raise Cancelled("It was asked to stop.")


def deaf(argument: tuple[Path, str], _watch: Watch) -> None:
    """Never stops by itself."""
    folder, name = argument
    _note(folder, f"{name} {os.getpid()}")
    while True:
        time.sleep(0.01)


@dataclass(frozen=True)
class HeldOnTheWay:
    """A function that goes no further than its first report of something done, until a file is there."""

    function: Function[Any]
    until: Path

    def __call__(self, argument: Any, watch: Watch) -> Any:
        """Return the function's result; its progress reports wait for the file."""

        def delayed_progress(done: int, total: int, message: str) -> None:
            watch.progress(done, total, message)
            while done and not self.until.exists():
                watch.progress(done, total, message)
                time.sleep(0.01)

        return self.function(argument, replace(watch, progress=delayed_progress))


def _note(folder: Path, name: str) -> int:
    """Note that a task was started; returns how often."""
    with (folder / name).open("a") as file:
        file.write("started\n")
    return len((folder / name).read_text().splitlines())


if __name__ == "__main__":  # a parent to be killed, with two tasks
    from registry.tasks.process_pool import ProcessPool
    from registry.tasks.run import run_tasks
    from registry.tasks.task import Task

    with ProcessPool(2) as pool:
        list(run_tasks(pool, deaf, [Task((Path(sys.argv[1]), name)) for name in ("one", "other")]))
