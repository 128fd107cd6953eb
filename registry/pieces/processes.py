"""Pieces of work in processes of this machine, each of which is kept for the next piece: `Workplace` here."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Self, TypeVar

from registry.errors import Cancelled, Unavailable, rebuild
from registry.pieces.contract import (
    GRACE_SECONDS,
    RETRIES,
    TICK_SECONDS,
    Ended,
    Piece,
    PieceProgress,
    given_up,
    nobody,
)
from registry.pieces.waiting import Try, Waiting

R = TypeVar("R")
PROCESS = "registry.pieces.process"
"""The module that runs pieces."""


class Processes:
    """So many processes, started as they are needed, kept for further pieces, and ended where `with` ends.

    A piece may find in its process what an earlier one left there, such as a base model that is loaded.
    """

    shares_files = True

    def __init__(self, at_once: int, *, retries: int = RETRIES, grace: float = GRACE_SECONDS) -> None:
        self._at_once, self._retries, self._grace = at_once, retries, grace
        self._idle: list[_Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end_all(self._idle, self._grace)
        self._idle = []

    def threads(self, *, of: int) -> int:
        """A share of those that this process uses, and one at least."""
        return max(1, of // self._at_once)

    def run(
        self,
        pieces: Iterable[Piece[R]],
        *,
        progress: PieceProgress = nobody,
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[Ended[R]]:
        """As `Workplace.run`."""
        waiting = Waiting(pieces)
        busy: dict[_Process, Try] = {}
        try:
            while True:
                while len(busy) < self._at_once and (one := waiting.take()) is not None:
                    process = self._idle.pop() if self._idle else _Process()
                    busy[process] = one
                    process.tell(one.piece)
                if not busy:
                    return
                if should_stop is not None and should_stop():
                    raise Cancelled("The work was cancelled.")
                for process in _with_news(list(busy)):
                    one = busy[process]
                    try:
                        ended = process.hear(one.piece.name, progress)
                    except EOFError:
                        del busy[process]
                        one = replace(one, lost=one.lost + 1)
                        why = f"Its process ended with status {process.end()}."
                        if one.lost > self._retries:
                            yield given_up(one.piece.name, why, one.lost)
                        else:
                            waiting.again(one)
                        continue
                    if ended is not None:
                        del busy[process]
                        self._idle.append(process)
                        yield replace(ended, lost=one.lost)
        finally:
            _end_all(list(busy), self._grace)


def _with_news(processes: list[_Process]) -> list[_Process]:
    """Those that have said something, or ended, within a moment."""
    by_connection = {process.connection: process for process in processes}
    return [by_connection[one] for one in wait(list(by_connection), TICK_SECONDS) if isinstance(one, Connection)]


def _end_all(processes: Sequence[_Process], grace: float) -> None:
    """End processes: all are asked first, and those killed that work on after their grace."""
    for process in processes:
        process.ask_to_end()
    deadline = time.monotonic() + grace
    for process in processes:
        process.end(max(0.0, deadline - time.monotonic()))


class _Process:
    """A process that runs pieces, and the pipe to it; raises Unavailable where none can be started."""

    def __init__(self) -> None:
        self.connection, theirs = Pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 (a module of ours)
                [sys.executable, "-m", PROCESS, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints is none of our output
                start_new_session=True,  # Ctrl-C is for the parent, which then ends this one
            )
        except OSError as error:
            self.connection.close()
            raise Unavailable(f"A process to work in could not be started: {error.strerror or error}.") from error
        finally:
            theirs.close()
        self._shared: Any = None

    def tell(self, piece: Piece[Any]) -> None:
        """Have a piece run; whether the process is there still shows when it is heard."""
        with suppress(BrokenPipeError):
            if piece.shared is not self._shared:
                self.connection.send(("shared", piece.shared))
                self._shared = piece.shared
            self.connection.send(("piece", (piece.work, piece.given)))

    def hear(self, name: str, progress: PieceProgress) -> Ended[Any] | None:
        """What the piece ended with, None where it has said how far it is; raises EOFError where the process ended."""
        try:
            what, value = self.connection.recv()
        except ConnectionResetError:
            raise EOFError from None
        if what == "progress":
            progress(name, *value)
            return None
        if what == "machine":  # there is no other
            raise rebuild(**value)
        return Ended(name, result=value) if what == "result" else Ended(name, problem=rebuild(**value))

    def ask_to_end(self) -> None:
        """Have it stop in good order: nothing more is sent."""
        with suppress(OSError):
            self.connection.send(None)

    def end(self, grace: float = 0.0) -> int:
        """Its status, when it has ended; killed where that takes longer than its grace."""
        deadline = time.monotonic() + grace
        with suppress(EOFError, OSError):
            while (left := deadline - time.monotonic()) > 0:
                if self.connection.poll(left):
                    self.connection.recv()  # read on: it must not wait for a reader
        self.connection.close()
        try:
            return self._process.wait(max(deadline - time.monotonic(), TICK_SECONDS))
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
