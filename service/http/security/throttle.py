"""Slow down keys that were refused for asking too much: their next requests begin one by one.

A refusal is cheap but not free: a client that does not wait for `Retry-After` would take a share of the machine from
every other key. A client that waits is not slowed down, and no key is while no other key sends requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from registry.errors import RateLimitExceeded

APART = 0.1
"""Seconds between the starts of a refused key's requests."""
REMEMBERED = 1.0
"""Seconds after a refusal in which the key is slowed down."""
OTHERS = 5.0
"""Seconds after its last request in which another key counts as active."""
LONGEST = 10
"""Seconds; a request that would wait longer is refused at once."""


@dataclass
class _Key:
    until: float = 0.0
    next_at: float = 0.0


class KeyThrottle:
    """The keys that were recently refused with one of the statuses `too_much`. For use in one event loop.

    `clock` and `sleep` are replaced in tests.
    """

    def __init__(
        self,
        too_much: Collection[int],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        self._too_much = too_much
        self._clock = clock
        self._sleep = sleep
        self._keys: dict[str, _Key] = {}
        self._last_request_at: dict[str, float] = {}

    async def turn(self, key_id: str) -> None:
        """Wait until a request of a key may begin; raises RateLimitExceeded if it would wait longer than LONGEST."""
        key, now = self._keys.get(key_id), self._clock()
        self._last_request_at[key_id] = now
        if key is None:
            return
        if now >= max(key.until, key.next_at):
            del self._keys[key_id]
            return
        self._last_request_at = {active: at for active, at in self._last_request_at.items() if now - at < OTHERS}
        if self._last_request_at.keys() == {key_id}:
            return
        start = max(now, key.next_at)
        if start - now > LONGEST:
            raise RateLimitExceeded(
                "This key did not wait after refusals, so its requests now start one after the other, and too "
                "many of them wait: send fewer.",
                retry_after=LONGEST,
            )
        key.next_at = start + APART
        await self._sleep(start - now)

    def record(self, key_id: str, status: int) -> None:
        """Note the status of an answer to a key."""
        if status in self._too_much:
            self._keys.setdefault(key_id, _Key()).until = self._clock() + REMEMBERED
