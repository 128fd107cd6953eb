"""Run a job over a pool for a request that waits: for the first embedded sample of the pool, then for the job.

A check of the pool reads the database. The waiting requests of a key check once a second altogether, and the first one
that succeeds makes the others check at once. A key may have as many waiting requests as queued jobs.

Called by the routes of soups and selectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from anyio.lowlevel import RunVar
from fastapi import Response

from registry.catalogue.rows import JobRow
from registry.errors import Busy, Unavailable
from service.access.keys import Principal
from service.http.answers.jobs import requested_job_body
from service.http.requests.waiting import wait_for_job
from service.http.schemas.jobs import Job
from service.http.thread_turns import in_thread
from service.jobs.queue_limits import check_queue
from service.jobs.runner import FINAL, result_of
from service.services import Services

CHECK_SECONDS = 1.0
"""Seconds between two checks of all waiting requests of a key."""
STOP_SECONDS = 1.0
"""Seconds within which a waiting request notices that the server stops."""
Check = Callable[[], None]


class Waiters:
    """The requests that wait for a pool, by their key. For use in one event loop."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def joined(self, key_id: str, most: int) -> Iterator[asyncio.Event]:
        """Add a waiting request; yield the event that tells it to check. Raises Busy if `most` of the key wait."""
        events = self._events.setdefault(key_id, set())
        if len(events) >= most:
            raise Busy(
                f"{len(events)} requests of this key wait for samples that are being embedded, and the limit is {most} "
                "(SOUP_JOB_QUEUE_PER_KEY): ask again when some are answered.",
                retry_after=2,
            )
        event = asyncio.Event()
        events.add(event)
        try:
            yield event
        finally:
            events.discard(event)
            if not events:
                del self._events[key_id]

    def count(self, key_id: str) -> int:
        """Return the number of waiting requests of a key."""
        return len(self._events.get(key_id, ()))

    def wake(self, key_id: str) -> None:
        """Make all waiting requests of a key check."""
        for event in self._events.get(key_id, ()):
            event.set()


_waiters: RunVar[Waiters] = RunVar("pool_waiters")


async def run_pool_job(
    services: Services,
    principal: Principal,
    response: Response,
    *,
    kind: str,
    check_pool: Check,
    enqueue: Callable[[], JobRow],
    seconds: float,
) -> dict[str, Any] | Job:
    """Queue a job once its pool has members; return its result, or 202 and the job if it takes longer.

    `check_pool` raises for a pool that cannot be used, or not yet; `kind` is the job's kind if the pool must be fitted
    first.
    """

    def check_limits() -> None:
        with services.registry.database.read() as catalogue:
            check_queue(catalogue, services.settings, kind, principal.key_id)

    remaining = await until_selectable(services, principal.key_id, check_pool, check_limits, seconds)
    job = await in_thread(enqueue)
    row = await wait_for_job(services, job.id, remaining)
    if row.state not in FINAL:
        response.status_code = 202
        return requested_job_body(row, principal)
    return result_of(row)


async def until_selectable(services: Services, key_id: str, check: Check, check_limits: Check, seconds: float) -> float:
    """Wait until `check` finds an embedded member in the pool of a request; return the remaining seconds.

    Samples that were just pushed are embedded in the meantime: a fit begun before that would fail. `check_limits` is
    called before waiting, and raises if the job could not be queued afterwards. Raises what `check` raises: Unavailable
    for samples that are not yet embedded when the seconds are over.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    pending = await _pending(check)
    if pending is None:
        return seconds
    if seconds <= 0:
        raise pending
    await in_thread(check_limits)
    waiters = _waiters.get(None)
    if waiters is None:
        _waiters.set(waiters := Waiters())
    with waiters.joined(key_id, services.settings.job_queue_per_key) as wake:
        while pending is not None:
            remaining = deadline - clock()
            if remaining <= 0 or services.jobs.closed:
                raise pending
            await _pause(services, wake, min(remaining, CHECK_SECONDS * waiters.count(key_id)))
            pending = await _pending(check)
    waiters.wake(key_id)
    return max(0.0, deadline - clock())


async def _pending(check: Check) -> Unavailable | None:
    """Return the error of a pool whose samples are being embedded, None if `check` passes; raises other errors."""
    try:
        await in_thread(check)
    except Unavailable as error:
        if error.param != "pool":
            raise
        return error
    return None


async def _pause(services: Services, wake: asyncio.Event, seconds: float) -> None:
    """Wait until `wake` is set, the seconds have passed or the server stops."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while (remaining := deadline - clock()) > 0 and not wake.is_set() and not services.jobs.closed:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(remaining, STOP_SECONDS)):
                await wake.wait()
    wake.clear()
