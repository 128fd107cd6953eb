"""The signature of progress functions, and the steps of long work. Standard library only."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int, str], None]
"""`(done, total, message)`, called between steps; it may raise to cancel the work."""


def silent(_done: int, _total: int, _message: str) -> None:
    """Ignore progress."""


class Steps:
    """Reports progress over a known number of steps; any call raises what the progress function raises."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress or silent
        self._total = total
        self._done = 0

    def note(self, message: str) -> None:
        """Report progress within a step."""
        self._progress(self._done, self._total, message)

    def step(self, message: str) -> None:
        """Report the end of a step."""
        self._done += 1
        self.note(message)
