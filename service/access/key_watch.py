"""Count used and refused keys in memory; the thread that writes usage writes them to the database.

`keys.authenticate` counts every request, which never waits for a write. A key's last use is written at most
once a minute, and refusals as one audit entry a minute for each key and reason, however many there were.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from registry.catalogue import Database
from registry.errors import SoupError

log = logging.getLogger("soup.keys")

Reason = Literal["unknown", "revoked", "expired", "replaced", "token"]
WRITE_INTERVAL = 60.0
"""Seconds between two writes about the same key, or about refusals."""


def present() -> datetime:
    """The present moment, UTC."""
    return datetime.now(UTC)


class KeyWatch:
    """The uses and refusals of keys since the last write. From any thread; tests replace `clock` and `moment`."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float] = time.monotonic,
        moment: Callable[[], datetime] = present,
    ) -> None:
        self.database = database
        self._clock = clock
        self._moment = moment
        self._lock = threading.Lock()
        self._used: dict[str, datetime] = {}
        self._refused: Counter[tuple[Reason, str | None]] = Counter()
        self._written: dict[str, float] = {}
        self._refusals_written_at: float | None = None

    def used(self, key_id: str) -> None:
        """Count a use of a key."""
        moment = self._moment()
        with self._lock:
            self._used[key_id] = moment

    def refused(self, reason: Reason, key_id: str | None) -> None:
        """Count a refusal of a key; None for an unknown one."""
        with self._lock:
            self._refused[reason, key_id] += 1

    def write(self, *, last: bool = False) -> None:
        """Write what is due, or with `last` everything, in one transaction; a failed write is repeated later."""
        now = self._clock()
        with self._lock:
            used = {
                key: moment
                for key, moment in self._used.items()
                if last or now - self._written.get(key, -WRITE_INTERVAL) >= WRITE_INTERVAL
            }
            is_due = last or self._refusals_written_at is None or now - self._refusals_written_at >= WRITE_INTERVAL
            refused = self._refused if is_due else Counter[tuple[Reason, str | None]]()
            if not (used or refused):
                return
            self._used = {key: moment for key, moment in self._used.items() if key not in used}
            if refused:
                self._refused, self._refusals_written_at = Counter(), now
        try:
            with self.database.write() as catalogue:
                catalogue.keys.record_use(used)
                for (reason, key_id), count in sorted(refused.items(), key=str):
                    catalogue.audit.record(
                        "key.refuse",
                        key_id or "unknown",
                        key_id=key_id,
                        request_id=None,
                        detail={"reason": reason, "count": count},
                    )
        except BaseException as error:
            with self._lock:
                self._used = {**used, **self._used}
                self._refused += refused
            if not isinstance(error, SoupError):
                raise
            log.warning("the use of keys is not written yet: %s", error.message)
        else:
            with self._lock:
                self._written |= dict.fromkeys(used, now)
