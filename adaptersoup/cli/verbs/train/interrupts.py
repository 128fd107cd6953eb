"""Interrupts of a training by SIGINT or SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from registry.errors import Cancelled


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """A function that returns True after a first SIGINT or SIGTERM, which does not end the program.

    A second signal has its usual effect. Signals are not caught outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    signals = _CaughtSignals()
    try:
        signals.catch()
        yield signals.is_caught
    finally:
        signals.restore()


class _CaughtSignals:
    """Catches the first SIGINT or SIGTERM, then restores the handlers."""

    def __init__(self) -> None:
        self._handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._is_caught = False

    def catch(self) -> None:
        """Install the handler."""
        for number in self._handlers:
            signal.signal(number, self._handle)

    def restore(self) -> None:
        """Restore the handlers that were installed before."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def is_caught(self) -> bool:
        """Return True if a signal has arrived."""
        return self._is_caught

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._is_caught = True
        self.restore()


@contextmanager
def continue_hint(*, saved: bool) -> Iterator[None]:
    """Add to the sentence of a cancelled training how to continue it."""
    try:
        yield
    except Cancelled as error:
        hint = "Run the same command again to go on." if saved else "Nothing of it is kept: --checkpoint FOLDER would."
        raise Cancelled(f"{error.message} {hint}") from None
