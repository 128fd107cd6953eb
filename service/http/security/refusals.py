"""How fast a key may go on after it was refused for asking too much: its requests then begin one by one.

A refusal is cheap and not free: a client that does not wait as it was told would take a share of the machine from every
other key. Whoever waits as long as `Retry-After` says notices nothing, and nor does a key while no other asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from registry.errors import RateLimitExceeded

APART = 0.1
"""Seconds between the beginnings of a refused key's requests."""
REMEMBERED = 1.0
"""Seconds after a refusal in which the key is held to that."""
OTHERS = 5.0
"""Seconds for which another key counts as asking."""
LONGEST = 10
"""A request that would wait for longer is refused at once."""


@dataclass
class _Key:
    until: float = 0.0
    next_at: float = 0.0


class Refusals:
    """What keys were refused lately, with one of the statuses `too_much`; of one event loop.

    `clock` and `sleep` are the tests' seam for time.
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
        self._asked: dict[str, float] = {}

    async def turn(self, key_id: str) -> None:
        """Wait until this request of a key may begin; raises RateLimitExceeded where too many of it wait already."""
        key, now = self._keys.get(key_id), self._clock()
        self._asked[key_id] = now
        if key is None:
            return
        if now >= max(key.until, key.next_at):
            del self._keys[key_id]
            return
        if not any(now - at < OTHERS for other, at in self._asked.items() if other != key_id):
            return
        start = max(now, key.next_at)
        if start - now > LONGEST:
            raise RateLimitExceeded(
                "This key was refused for asking too much and did not wait; its requests now begin one by one, and too "
                "many of them wait.",
                retry_after=LONGEST,
            )
        key.next_at = start + APART
        await self._sleep(start - now)

    def answered(self, key_id: str, status: int) -> None:
        """A request of a key was answered."""
        if status in self._too_much:
            self._keys.setdefault(key_id, _Key()).until = self._clock() + REMEMBERED
