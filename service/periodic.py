"""Work that a server repeats in a thread: heartbeats, writes of counts, removal of expired data."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from registry.errors import SoupError

log = logging.getLogger("soup.periodic")


class Periodic:
    """A thread that calls `work` every `seconds`, and `last` when it stops.

    A failure ends nothing, as the next call tries again. It is logged when it begins and when it is over, not at each
    call during an outage.
    """

    def __init__(
        self, name: str, seconds: float, work: Callable[[], object], *, last: Callable[[], object] | None = None
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._work = work
        self._last = last
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"soup-{name}", daemon=True)
        self._is_failing = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, seconds: float) -> bool:
        """End the thread, if it was started; False if that takes longer. A second call does nothing."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while not self._over.wait(self._seconds):
            self._run(self._work)
        if self._last is not None:
            self._run(self._last)

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except SoupError as error:
            if not self._is_failing:
                log.warning("%s: %s", self._name, error.message)
            self._is_failing = True
        except Exception:
            log.exception("%s failed", self._name)
        else:
            if self._is_failing:
                log.info("%s: succeeds again", self._name)
            self._is_failing = False
