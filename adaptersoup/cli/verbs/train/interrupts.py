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
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    is_caught = False

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def catch(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_caught
        is_caught = True
        restore()

    try:
        for number in handlers:
            signal.signal(number, catch)
        yield lambda: is_caught
    finally:
        restore()


@contextmanager
def continue_hint(*, saved: bool) -> Iterator[None]:
    """Add to the sentence of a cancelled training how to continue it."""
    try:
        yield
    except Cancelled as error:
        hint = "Run the same command again to go on." if saved else "Nothing of it is kept: --checkpoint FOLDER would."
        raise Cancelled(f"{error.message} {hint}") from None
