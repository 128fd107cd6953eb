"""Waiting for a job on the event loop, without holding a thread, until it ends or the time a client gave is over.

Called by the routes of soups, selectors and jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from registry.catalogue.rows import JobRow
from registry.errors import InvalidParameter
from service.http.thread_turns import in_thread
from service.jobs.runner import FINAL
from service.parts import Services


def wait_of(asked: float | None, services: Services) -> float:
    """The seconds to wait; raises InvalidParameter beyond the limit."""
    if asked is None:
        return services.settings.wait_seconds
    if asked > services.settings.max_wait_seconds:
        raise InvalidParameter(
            f"'wait' may be at most {services.settings.max_wait_seconds:g} seconds here; poll the job for longer.",
            param="wait",
        )
    return asked


def job_row(services: Services, scope: tuple[str, ...] | None, job_id: str) -> JobRow:
    """A job as the catalogue has it now; raises NotFound for one of another namespace."""
    with services.registry.database.read() as catalogue:
        return catalogue.jobs.get(scope, job_id)


@contextmanager
def job_watch(services: Services, job_id: str) -> Iterator[Callable[[float], Awaitable[None]]]:
    """While open, listens to one job; what is given waits for its next change, at most so many seconds."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(changed.set)

    async def change(seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await changed.wait()
        changed.clear()

    with services.jobs.watched(job_id, tell):
        yield change


async def finished(services: Services, job_id: str, seconds: float) -> JobRow:
    """The job once it ended, or as it stands after `seconds`, or when the server stops: it goes on with the next."""
    deadline = asyncio.get_running_loop().time() + seconds
    with job_watch(services, job_id) as change:
        services.jobs.wake()
        while True:
            row = await in_thread(job_row, services, None, job_id)
            left = deadline - asyncio.get_running_loop().time()
            if row.state in FINAL or left <= 0 or services.jobs.closed:
                return row
            await change(min(left, 1.0))
