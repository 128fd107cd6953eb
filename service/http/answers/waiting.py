"""Wait for a job on the event loop, without blocking a thread, until it ends or the client's wait time is over.

Called by the routes of soups, selectors and jobs. A job over a pool is queued once the pool has an embedded sample.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fastapi import Response

from registry.catalogue.rows import JobRow
from registry.errors import Busy, Cancelled, InvalidParameter, Unavailable, rebuild
from service.access.keys import Principal
from service.http.answers.jobs import requested_job_body
from service.http.schemas.jobs import Job
from service.http.thread_turns import in_thread
from service.jobs.queue_limits import check_queue
from service.jobs.runner import FINAL
from service.services import Services

CHECK_SECONDS = 1.0
"""Seconds between two checks of a waiting request."""
CHECKS_AT_ONCE = 10
"""Checks of all waiting requests of a key in that time: with more requests, each checks less often."""
Check = Callable[[], None]


def wait_seconds(wait: float | None, services: Services) -> float:
    """Return the seconds to wait for a request's `wait`; raises InvalidParameter beyond the limit."""
    if wait is None:
        return services.settings.wait_seconds
    if wait > services.settings.max_wait_seconds:
        raise InvalidParameter(
            f"'wait' may be at most {services.settings.max_wait_seconds:g} seconds here; poll the job for longer.",
            param="wait",
        )
    return wait


def job_row(services: Services, scope: tuple[str, ...] | None, job_id: str) -> JobRow:
    """Return a job as it is in the catalogue now; raises NotFound if `scope` does not include its namespace."""
    with services.registry.database.read() as catalogue:
        return catalogue.jobs.get(scope, job_id)


@contextmanager
def job_watch(services: Services, job_id: str) -> Iterator[Callable[[float], Awaitable[None]]]:
    """Watch one job; yield a coroutine function that waits for its next change, up to a number of seconds."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(changed.set)

    async def wait_for_change(seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()
        changed.clear()

    with services.jobs.watched(job_id, notify):
        yield wait_for_change


async def wait_for_job(services: Services, row: JobRow, seconds: float) -> JobRow:
    """Wait until a job has ended, `seconds` have passed or the server stops, and return the job as it was last read.

    Outages of the database do not end the wait: a client that got an error would request the work a second time.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    with job_watch(services, row.id) as wait_for_change:
        services.jobs.wake()
        while True:
            with suppress(Busy, Unavailable):
                row = await in_thread(job_row, services, None, row.id)
            remaining = deadline - asyncio.get_running_loop().time()
            if row.state in FINAL or remaining <= 0 or services.jobs.closed:
                return row
            await wait_for_change(min(remaining, 1.0))


# --- jobs over a pool ---------------------------------------------------------------------------------


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
    row = await wait_for_job(services, job, remaining)
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
    waiting = services.waiting_for_pools
    waiting[key_id] += 1
    try:
        while pending is not None:
            remaining = deadline - clock()
            if remaining <= 0 or services.jobs.closed:
                raise pending
            await asyncio.sleep(min(remaining, CHECK_SECONDS * max(1, waiting[key_id] / CHECKS_AT_ONCE)))
            pending = await _pending(check)
    finally:
        waiting[key_id] -= 1
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


def result_of(row: JobRow) -> dict[str, Any]:
    """Return the result of an ended job, or raise its error."""
    if row.state == "succeeded":
        return row.result or {}
    if row.state == "cancelled":
        raise Cancelled(f"Job {row.id} was cancelled.")
    error = row.error or {}
    raise rebuild(
        str(error.get("code", "internal")),
        str(error.get("message", "The job failed.")),
        param=error.get("param"),
        problems=error.get("problems", ()),
    )
