"""Stops a training at Ctrl-C or a request to terminate, and says how to resume it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from registry.errors import Cancelled


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """While open, record a first Ctrl-C or SIGTERM; the function that is yielded returns True from then on.

    A second signal ends the program as usual. In other threads than the main one no signal is recorded.
    """
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        restore()

    try:
        for number in handlers:
            signal.signal(number, note)
        yield lambda: bool(signals)
    finally:
        restore()


@contextmanager
def saying_how_to_go_on(*, saved: bool) -> Iterator[None]:
    """Add to the message of a stopped training how to resume it."""
    try:
        yield
    except Cancelled as stopped:
        advice = (
            "Run the same command again to go on." if saved else "Nothing of it is kept: --checkpoint FOLDER would."
        )
        raise Cancelled(f"{stopped.message} {advice}") from None
