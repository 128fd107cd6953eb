"""Rate limits of keys and namespaces: requests and tokens per minute, as leaky buckets of a process or a database.

A bucket drains evenly, a full one in a minute. A request first takes the most that it may need, from every bucket or
from none. When it ends, it returns the rest; if it used more, the debt drains too. So the average over time holds
exactly. `Rates` counts in the memory of this process. Servers that share a database count together (`SharedRates`), in
rows of PostgreSQL and by the same rules.

Used by `http.models.metering`. It does not know requests or keys, only subjects by name.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from registry.catalogue import Database
from registry.errors import RateLimitExceeded
from service.periodic import Periodic

MINUTE = 60.0
MAX_BUCKETS = 10_000
"""The number of buckets above which empty buckets are dropped, which changes nothing."""
TOLERANCE = 1e-6
"""Rounding error of sums of requests or tokens."""
SETTLE_SECONDS = 0.25
"""Seconds between two writes of the differences between used and taken amounts."""

Measure = Literal["requests", "tokens"]
Name = tuple[str, str]
"""The subject and the measure of a bucket."""


@dataclass(frozen=True)
class Want:
    """An amount of a limit per minute that a request takes; messages begin with `subject`, the owner of the limit."""

    subject: str
    measure: Measure
    limit: int
    amount: int

    @property
    def name(self) -> Name:
        """The bucket that it is taken from."""
        return self.subject, self.measure

    def undrained(self, used: float, seconds: float) -> float:
        """The part of an amount used `seconds` ago that has not drained."""
        return max(0.0, used - seconds * self.limit / MINUTE)


@dataclass(frozen=True)
class Remaining:
    """The amount that is left of a limit; after `reset` seconds it is the whole limit."""

    limit: int
    remaining: int
    reset: float


@dataclass
class _Bucket:
    """The amount `used` of a limit `at` a moment."""

    used: float
    at: float
    limit: int

    def used_by(self, now: float) -> float:
        """The used amount that has not drained."""
        return max(0.0, self.used - (now - self.at) * self.limit / MINUTE)


class Rates:
    """The buckets of one process. Thread-safe; `clock` returns seconds that never decrease."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._buckets: dict[Name, _Bucket] = {}

    def take(self, wants: Sequence[Want]) -> None:
        """Take all amounts or none; raises RateLimitExceeded with the seconds after which all are available.

        An amount above its limit is never available: callers check that first.
        """
        with self._lock:
            now = self._clock()
            used = used_after(wants, {want.name: self._bucket(want, now).used for want in wants})
            for want in wants:
                self._bucket(want, now).used = used[want.name]

    def settle(self, want: Want, needed: int) -> None:
        """Correct what an ended request took (`want`) to what it `needed`."""
        with self._lock:
            bucket = self._bucket(want, self._clock())
            bucket.used = max(0.0, bucket.used + needed - want.amount)

    def remaining(self, wants: Sequence[Want], measure: Measure) -> Remaining | None:
        """The remainder of the limit with the least left; None without a limit."""
        with self._lock:
            now = self._clock()
            remainders = [remaining_of(want, self._bucket(want, now).used) for want in wants if want.measure == measure]
        return min(remainders, key=lambda remaining: (remaining.remaining, -remaining.reset), default=None)

    def used(self, wants: Sequence[Want]) -> dict[Name, float]:
        """The used amounts of these buckets that have not drained."""
        with self._lock:
            now = self._clock()
            return {want.name: self._bucket(want, now).used for want in wants}

    def know(self, want: Want, used: float) -> None:
        """Set the used amount of a bucket."""
        with self._lock:
            self._bucket(want, self._clock()).used = used

    def _bucket(self, want: Want, now: float) -> _Bucket:
        """The bucket as of now, with the limit of `want` from now on."""
        if want.name not in self._buckets:
            self._forget(now)
            self._buckets[want.name] = _Bucket(0.0, now, want.limit)
        bucket = self._buckets[want.name]
        bucket.used, bucket.at, bucket.limit = bucket.used_by(now), now, want.limit
        return bucket

    def _forget(self, now: float) -> None:
        """Drop empty buckets, if there are many."""
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.used_by(now) > 0}


def used_after(wants: Sequence[Want], used: Mapping[Name, float]) -> dict[Name, float]:
    """The used amounts after all of these are taken; raises RateLimitExceeded if one is not available."""
    waits = [(_wait(want, used[want.name]), want) for want in wants]
    wait, want = max(waits, key=lambda pair: pair[0], default=(0.0, None))
    if want is not None and wait > 0:
        raise _refusal(want, wait, used[want.name])
    after = dict(used)
    for want in wants:
        after[want.name] += want.amount
    return after


def remaining_of(want: Want, used: float) -> Remaining:
    """The remainder of a limit after `used`."""
    remaining = max(0, math.floor(want.limit - used + TOLERANCE))
    return Remaining(want.limit, remaining, used * MINUTE / want.limit)


def _wait(want: Want, used: float) -> float:
    over = used + want.amount - want.limit
    return over * MINUTE / want.limit if over > TOLERANCE else 0.0


def _refusal(want: Want, wait: float, used: float) -> RateLimitExceeded:
    seconds = max(1, math.ceil(wait - TOLERANCE))
    return RateLimitExceeded(
        f"{want.subject} has {want.limit} {want.measure} a minute; {remaining_of(want, used).remaining} are left and "
        f"{want.amount} are needed: try again in {seconds} s.",
        param=f"{want.measure}_per_minute",
        retry_after=seconds,
    )


class SharedRates:
    """The buckets of a database. Thread-safe.

    A request takes the most that it may need in one short transaction, whose rows other servers wait for. A thread
    corrects the amounts soon after the request has ended, so that the engine does not wait for the database. The next
    request of the same key to this server corrects them too.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached = Rates()
        """The buckets as this server read them last, for the remainders in answers."""
        self._lock = threading.Lock()
        self._owed: dict[Name, tuple[Want, int]] = {}
        """By bucket, the amount that ended requests used beyond what they took (negative for less), with one of their
        wants."""
        self.settling = Periodic("settling rates", SETTLE_SECONDS, self.write, last=self.write)

    def take(self, wants: Sequence[Want]) -> None:
        """Take all amounts or none (`Rates.take`); raises Busy or Unavailable if the database does not answer."""
        if wants:
            used = self._update({want.name: want for want in wants}, wants)
            for want in wants:
                self._cached.know(want, used[want.name])

    def settle(self, want: Want, needed: int) -> None:
        """Correct what an ended request took (`Rates.settle`): here at once, for other servers soon."""
        self._cached.settle(want, needed)
        self._owe({want.name: (want, needed - want.amount)})

    def remaining(self, wants: Sequence[Want], measure: Measure) -> Remaining | None:
        """The remainder of the limit with the least left, as far as this server knows."""
        return self._cached.remaining(wants, measure)

    def used(self, wants: Sequence[Want]) -> dict[Name, float]:
        """The used amounts of these buckets in the database, without what servers are still to settle."""
        with self._database.read() as catalogue:
            rows = catalogue.rate_buckets.read([want.name for want in wants])
        return {
            want.name: want.undrained(rows[want.name].used, rows[want.name].seconds) if want.name in rows else 0.0
            for want in wants
        }

    def write(self) -> None:
        """Settle ended requests in the database; after an error a later call does."""
        with self._lock:
            wants = {name: want for name, (want, _) in self._owed.items()}
        if wants:
            self._update(wants, ())

    def _update(self, wants: Mapping[Name, Want], taking: Sequence[Want]) -> dict[Name, float]:
        """Settle what is owed to these buckets and take `taking`, in one transaction; return what is used then.

        Raises RateLimitExceeded, with nothing changed.
        """
        with self._lock:
            owed = {name: self._owed.pop(name) for name in wants.keys() & self._owed.keys()}
        try:
            with self._database.write_unlocked() as catalogue:
                rows = catalogue.rate_buckets.lock(wants)
                settled = {
                    name: max(0.0, want.undrained(rows[name].used, rows[name].seconds) + owed.get(name, (want, 0))[1])
                    for name, want in wants.items()
                }
                used = used_after(taking, settled)
                catalogue.rate_buckets.put(used, rows)
        except BaseException:
            self._owe(owed)
            raise
        return used

    def _owe(self, owed: Mapping[Name, tuple[Want, int]]) -> None:
        with self._lock:
            for name, (want, amount) in owed.items():
                self._owed[name] = want, self._owed.get(name, (want, 0))[1] + amount
