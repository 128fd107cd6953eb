"""Rates that several servers of one database count together: buckets of `service.rates`, as rows of PostgreSQL.

A request takes what it may need in one short transaction, whose rows other servers wait for; what it did not need is
given back by a thread some moments later, since the engine waits for nobody, or with the next request of the same key
here. Used by `http.metering` as `Rates` is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

from registry.catalogue import Catalogue, Database
from registry.errors import SoupError
from service.rates import Left, Measure, Name, Rates, Want, after

log = logging.getLogger("soup.rates")
SETTLE_SECONDS = 0.25


class SharedRates:
    """The buckets of a database. From any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen = Rates()
        """The buckets as this server saw them last, for what answers say is left."""
        self._lock = threading.Lock()
        self._owed: dict[Name, tuple[Want, int]] = {}
        """What requests that have ended needed more than they took, or less; with one of their wants."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rates", daemon=True)

    def start(self) -> None:
        """Begin to settle."""
        self._thread.start()

    def stop(self, *, seconds: float) -> bool:
        """Settle what is left; False where that takes longer. What is not given back has worn off in a minute."""
        self._over.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def take(self, wants: Sequence[Want]) -> None:
        """As `Rates.take`; raises Busy or Unavailable where the database does not answer."""
        if not wants:
            return
        owed = self._owed_of({want.name for want in wants})
        try:
            with self._database.beside() as catalogue:
                used = _changed(catalogue, {want.name: want for want in wants}, owed, wants)
        except BaseException:
            self._owe(owed)
            raise
        for want in wants:
            self._seen.know(want, used[want.name])

    def settle(self, want: Want, needed: int) -> None:
        """As `Rates.settle`: soon, here and for the other servers."""
        self._seen.settle(want, needed)
        self._owe({want.name: (want, needed - want.amount)})

    def left(self, wants: Sequence[Want], measure: Measure) -> Left | None:
        """As `Rates.left`, as far as this server knows."""
        return self._seen.left(wants, measure)

    def write(self) -> None:
        """Settle what has ended; kept where the database does not take it now."""
        owed = self._owed_of(None)
        if not owed:
            return
        try:
            with self._database.beside() as catalogue:
                _changed(catalogue, {name: want for name, (want, _) in owed.items()}, owed, ())
        except BaseException as error:
            self._owe(owed)
            if not isinstance(error, SoupError):
                raise
            log.warning("what requests took is not settled yet: %s", error.message)

    def _loop(self) -> None:
        while not self._over.wait(SETTLE_SECONDS):
            self._try_to_write()
        self._try_to_write()

    def _try_to_write(self) -> None:
        try:
            self.write()
        except Exception:
            log.exception("settling rates failed")

    def _owe(self, owed: Mapping[Name, tuple[Want, int]]) -> None:
        with self._lock:
            for name, (want, amount) in owed.items():
                self._owed[name] = want, self._owed.get(name, (want, 0))[1] + amount

    def _owed_of(self, names: set[Name] | None) -> dict[Name, tuple[Want, int]]:
        """Take out what is owed to these buckets, or to all."""
        with self._lock:
            found = {name: one for name, one in self._owed.items() if names is None or name in names}
            self._owed = {name: one for name, one in self._owed.items() if name not in found}
        return found


def _changed(
    catalogue: Catalogue, wants: Mapping[Name, Want], owed: Mapping[Name, tuple[Want, int]], taken: Sequence[Want]
) -> dict[Name, float]:
    """Settle what is owed and take what is wanted, in one transaction; gives what is used then.

    Raises RateLimitExceeded, with nothing changed.
    """
    held = catalogue.rate_buckets.held(wants)
    used = {
        name: max(0.0, want.worn(held[name].used, held[name].seconds) + (owed[name][1] if name in owed else 0))
        for name, want in wants.items()
    }
    used = after(taken, used)
    catalogue.rate_buckets.put(used, held)
    return used
