"""Wait for a job on the event loop, without blocking a thread, until it ends or the client's wait time is over.

Called by the routes of soups, selectors and jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from registry.catalogue.rows import JobRow
from registry.errors import Busy, InvalidParameter, Unavailable
from service.http.thread_turns import in_thread
from service.jobs.runner import FINAL
from service.services import Services


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
