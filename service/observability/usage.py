"""Usage of inference, counted in memory and written to the database every few seconds and at the end.

`http.models.metering` counts, a thread of the runtime writes. A killed process loses the counts since the last
write. Counts that cannot be written are written with the next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime

from registry.catalogue import Database
from registry.catalogue.usage import UsageKey, UsageSum


def today() -> date:
    """Return the current day, UTC."""
    return datetime.now(UTC).date()


class UsageCounts:
    """The usage since the last write. Any thread may use it."""

    def __init__(self, database: Database, *, day: Callable[[], date] = today) -> None:
        self._database = database
        self._day = day
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._counted: dict[UsageKey, UsageSum] = {}

    def count(self, key_id: str, namespace: str, model: str, used: UsageSum) -> None:
        """Add to a key's usage of a model today."""
        self._add({UsageKey(self._day().isoformat(), key_id, namespace, model): used})

    def write(self) -> None:
        """Write the counts in one transaction; after an error a later call writes them."""
        with self._writing:
            with self._lock:
                counted, self._counted = self._counted, {}
            try:
                if counted:
                    with self._database.write() as catalogue:
                        catalogue.usage.add(counted)
            except BaseException:
                self._add(counted)
                raise

    def _add(self, counted: dict[UsageKey, UsageSum]) -> None:
        with self._lock:
            for key, used in counted.items():
                self._counted[key] = self._counted.get(key, UsageSum()) + used
