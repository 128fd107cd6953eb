"""How long work tells how far it is: one signature, everywhere. Standard library only."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""`(done, total, message)`, called between two steps; whoever wants to end the work raises from it."""


def silent(_done: int, _total: int, _message: str) -> None:
    """The progress of work that nobody watches."""


class Steps:
    """Progress over a known number of steps; every call is also the chance to cancel."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress or silent
        self._total = total
        self._done = 0

    def note(self, message: str) -> None:
        """Report where things stand, inside of a step."""
        self._progress(self._done, self._total, message)

    def step(self, message: str) -> None:
        """Report that a step is finished."""
        self._done += 1
        self.note(message)
