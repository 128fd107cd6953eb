"""A training that is stopped by Ctrl-C, or by a request to terminate, and what is said of it then."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from registry.errors import Cancelled


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """While open, a first Ctrl-C (or a request to terminate) is only noted, and what is given says so.

    A second one ends the program as ever. Outside of the main thread nothing is noted.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        restore()

    try:
        for number in before:
            signal.signal(number, note)
        yield lambda: bool(asked)
    finally:
        restore()


@contextmanager
def saying_how_to_go_on(*, saved: bool) -> Iterator[None]:
    """Ends the sentence of a training that was stopped with what to do."""
    try:
        yield
    except Cancelled as stopped:
        how = "Run the same command again to go on." if saved else "Nothing of it is kept: --checkpoint FOLDER would."
        raise Cancelled(f"{stopped.message} {how}") from None
