"""Detects steps of the machine's clock, so that nothing is removed by age after the clock was set forward.

Used by the job runner before it removes anything by age. A wrong clock is assumed to be corrected, by an operator or by
the network, within a day.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

log = logging.getLogger("soup.jobs")
STEP = timedelta(minutes=5)
"""Smaller steps do not matter: grace periods are days."""
DISTRUST = timedelta(days=1)
"""The time after a step during which nothing is removed."""


def _now() -> datetime:
    return datetime.now(UTC)


def _seconds() -> float:
    """The monotonic clock, with the time in which the machine was suspended where the system counts it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ClockSteps:
    """Compares the machine's clock, `wall`, with a monotonic one, `seconds`."""

    def __init__(self, *, wall: Callable[[], datetime] = _now, seconds: Callable[[], float] = _seconds) -> None:
        self._wall, self._seconds = wall, seconds
        self._last_wall, self._last_seconds = wall(), seconds()
        self._distrusted_until: float | None = None
        self._lock = threading.Lock()

    def is_steady(self) -> bool:
        """Return False for a day after the machine's clock was set forward. From any thread."""
        with self._lock:
            return self._is_trusted()

    def _is_trusted(self) -> bool:
        wall, now = self._wall(), self._seconds()
        step = (wall - self._last_wall) - timedelta(seconds=now - self._last_seconds)
        self._last_wall, self._last_seconds = wall, now
        if step > STEP:
            self._distrusted_until = now + DISTRUST.total_seconds()
            log.warning("the clock was set forward by %s: nothing is removed for its age within the next day", step)
        if self._distrusted_until is not None and now >= self._distrusted_until:
            self._distrusted_until = None
        return self._distrusted_until is None
