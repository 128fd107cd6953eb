"""Usage of inference, counted in memory and written to the database every few seconds and at the end.

`http.models.metering` counts, the runtime starts and stops the writer. A killed process loses the counts since the last
write. Counts that cannot be written are written with the next.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime

from registry.catalogue import Database
from registry.catalogue.usage import UsageKey, UsageSum
from registry.errors import SoupError
from service.access.key_watch import KeyWatch

log = logging.getLogger("soup.usage")


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

    def write(self) -> bool:
        """Write the counts in one transaction; False if the database is unavailable."""
        with self._writing:
            with self._lock:
                counted, self._counted = self._counted, {}
            if not counted:
                return True
            try:
                with self._database.write() as catalogue:
                    catalogue.usage.add(counted)
            except BaseException as error:
                self._add(counted)
                if not isinstance(error, SoupError):
                    raise
                log.warning("usage is not written yet: %s", error.message)
                return False
            return True

    def _add(self, counted: dict[UsageKey, UsageSum]) -> None:
        with self._lock:
            for key, used in counted.items():
                self._counted[key] = self._counted.get(key, UsageSum()) + used


class UsageWriter:
    """The thread that writes usage and the use of keys every `seconds`, and once more when it is stopped."""

    def __init__(self, counts: UsageCounts, *, seconds: float, keys: KeyWatch | None = None) -> None:
        self._counts = counts
        self._keys = keys
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="usage", daemon=True)

    def start(self) -> None:
        """Start the writer thread."""
        self._thread.start()

    def stop(self, *, seconds: float) -> bool:
        """Write the rest and stop, once counting has ended; False if that takes longer."""
        self._over.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        while not self._over.wait(self._seconds):
            self._write()
        self._write(last=True)

    def _write(self, *, last: bool = False) -> None:
        try:
            self._counts.write()
            if self._keys is not None:
                self._keys.write(last=last)
        except Exception:
            log.exception("writing usage failed")
