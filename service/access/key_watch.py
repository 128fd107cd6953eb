"""Count used and refused keys in memory; a thread of the runtime writes them to the database.

`keys.authenticate` counts every request, which never waits for a write. Once a minute a key's last
use is written, and refusals as one audit entry for each key and reason, however many there were.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

from registry.catalogue import Database

Reason = Literal["unknown", "revoked", "expired", "replaced", "token"]
WRITE_INTERVAL = 60.0
"""Seconds between two writes."""


def present() -> datetime:
    """The present moment, UTC."""
    return datetime.now(UTC)


class KeyWatch:
    """The uses and refusals of keys since the last write. From any thread; tests replace `moment`."""

    def __init__(self, database: Database, *, moment: Callable[[], datetime] = present) -> None:
        self.database = database
        self._moment = moment
        self._lock = threading.Lock()
        self._used: dict[str, datetime] = {}
        self._refused: Counter[tuple[Reason, str | None]] = Counter()

    def used(self, key_id: str) -> None:
        """Count a use of a key."""
        moment = self._moment()
        with self._lock:
            self._used[key_id] = moment

    def refused(self, reason: Reason, key_id: str | None) -> None:
        """Count a refusal of a key; None for an unknown one."""
        with self._lock:
            self._refused[reason, key_id] += 1

    def write(self) -> None:
        """Write the uses and refusals in one transaction; after an error a later call writes them."""
        with self._lock:
            used, self._used = self._used, {}
            refused, self._refused = self._refused, Counter()
        try:
            if used or refused:
                self._store(used, refused)
        except BaseException:
            with self._lock:
                self._used = {**used, **self._used}
                self._refused += refused
            raise

    def _store(self, used: Mapping[str, datetime], refused: Counter[tuple[Reason, str | None]]) -> None:
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
