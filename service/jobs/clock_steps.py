"""Whether the machine's clock was set forward while a server runs: what would be due by it alone is not removed then.

Used by the runner before it removes anything by age. A clock that is wrong is put right, by an operator or by the
network, within a day; one that was right before and stands still now would have removed nothing either.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

log = logging.getLogger("soup.jobs")
STEP = timedelta(minutes=5)
"""By less no clock is set that matters here: grace periods are days."""
DOUBTED = timedelta(days=1)
"""How long nothing is removed after that."""


def _now() -> datetime:
    return datetime.now(UTC)


class ClockSteps:
    """The machine's clock beside one that cannot be set; `seconds` is that one, and the tests' seam with `wall`."""

    def __init__(
        self, *, wall: Callable[[], datetime] = _now, seconds: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self._wall, self._seconds = wall, seconds
        self._seen = wall(), seconds()
        self._doubted_until: float | None = None

    def is_steady(self) -> bool:
        """Look at both; False for a day after the machine's clock was set forward."""
        (then, began), self._seen = self._seen, (self._wall(), self._seconds())
        moment, now = self._seen
        step = (moment - then) - timedelta(seconds=now - began)
        if step > STEP:
            self._doubted_until = now + DOUBTED.total_seconds()
            log.warning("the clock was set forward by %s: nothing is removed for its age within the next day", step)
        if self._doubted_until is not None and now >= self._doubted_until:
            self._doubted_until = None
        return self._doubted_until is None
