"""Waiting on the event loop for the first embedded sample of a pool, at the cost of a look a second for each key.

A look reads the database. However many requests of a key wait, together they look once a second, and whichever finds
what it waits for has the others look at once. A key has as many of them as it may have jobs queued.

Called by the routes of soups and selectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from anyio.lowlevel import RunVar

from registry.errors import Busy, Unavailable
from service.http.thread_turns import in_thread
from service.parts import Services

LOOK_AGAIN = 1.0
"""Seconds between two looks of all requests of a key that wait."""
HEED = 1.0
"""Seconds after which a request that waits notices that the server stops."""
Check = Callable[[], None]


class Waiters:
    """The requests that wait for a pool, by their key. Of one event loop."""

    def __init__(self) -> None:
        self._of: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def joined(self, key_id: str, most: int) -> Iterator[asyncio.Event]:
        """While open, one more waits; what is given is set when it is to look. Raises Busy where `most` do."""
        mine = self._of.setdefault(key_id, set())
        if len(mine) >= most:
            raise Busy(
                f"{len(mine)} requests of this key wait for samples that are being embedded, and the limit is {most} "
                "(SOUP_JOB_QUEUE_PER_KEY): ask again when some are answered.",
                retry_after=2,
            )
        event = asyncio.Event()
        mine.add(event)
        try:
            yield event
        finally:
            mine.discard(event)
            if not mine:
                del self._of[key_id]

    def count(self, key_id: str) -> int:
        """How many of a key wait."""
        return len(self._of.get(key_id, ()))

    def look(self, key_id: str) -> None:
        """Have all of a key look."""
        for event in self._of.get(key_id, ()):
            event.set()


_waiters: RunVar[Waiters] = RunVar("pool_waiters")


async def until_selectable(services: Services, key_id: str, check: Check, room: Check, seconds: float) -> float:
    """Wait until the pool of a request has a member, which `check` raises for, and give what is left of the seconds.

    Samples that were pushed a moment ago are embedded meanwhile: a fit that was begun before would fail. Before it
    waits `room` is asked, which raises where no job could be queued afterwards. Raises what `check` raises, Unavailable
    for waiting samples when the seconds are over.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    if (waiting := await _pending(check)) is None:
        return seconds
    if seconds <= 0:
        raise waiting
    await in_thread(room)
    waiters = _waiters.get(None)
    if waiters is None:
        _waiters.set(waiters := Waiters())
    with waiters.joined(key_id, services.settings.job_queue_per_key) as told:
        while waiting is not None:
            left = deadline - clock()
            if left <= 0 or services.jobs.closed:
                raise waiting
            await _pause(services, told, min(left, LOOK_AGAIN * waiters.count(key_id)))
            waiting = await _pending(check)
    waiters.look(key_id)
    return max(0.0, deadline - clock())


async def _pending(check: Check) -> Unavailable | None:
    """The refusal of a pool whose samples are being embedded, None where it has one; raises any other."""
    try:
        await in_thread(check)
    except Unavailable as error:
        if error.param != "pool":
            raise
        return error
    return None


async def _pause(services: Services, told: asyncio.Event, seconds: float) -> None:
    """Wait until it is told, so many seconds at most, or until the server stops."""
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    while (left := until - clock()) > 0 and not told.is_set() and not services.jobs.closed:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left, HEED)):
                await told.wait()
    told.clear()
