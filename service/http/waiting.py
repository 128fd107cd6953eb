"""Waiting for a job on the event loop, without holding a thread, until it ends or the time a client gave is over.

Called by the routes of soups, selectors and jobs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from starlette.concurrency import run_in_threadpool

from registry.catalogue.rows import JobRow
from registry.errors import InvalidParameter
from service.jobs.runner import FINAL
from service.parts import Parts


def wait_of(asked: float | None, parts: Parts) -> float:
    """The seconds to wait; raises InvalidParameter beyond the limit."""
    if asked is None:
        return parts.settings.wait_seconds
    if asked > parts.settings.max_wait_seconds:
        raise InvalidParameter(
            f"'wait' may be at most {parts.settings.max_wait_seconds:g} seconds here; poll the job for longer.",
            param="wait",
        )
    return asked


def job_row(parts: Parts, scope: tuple[str, ...] | None, job_id: str) -> JobRow:
    """A job as the catalogue has it now; raises NotFound for one of another namespace."""
    with parts.registry.database.read() as catalogue:
        return catalogue.jobs.get(scope, job_id)


class JobWatch:
    """Wakes its coroutine at every change of one job, inside of `async with`."""

    def __init__(self, parts: Parts, job_id: str) -> None:
        self._parts = parts
        self._job_id = job_id
        self._changed = asyncio.Event()

    async def __aenter__(self) -> JobWatch:
        """Start listening."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._changed.set)

        self._unwatch = self._parts.jobs.watch(self._job_id, tell)
        return self

    async def __aexit__(self, *_: Any) -> None:
        """Stop listening."""
        self._unwatch()

    async def change(self, seconds: float) -> None:
        """Wait for a change, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()


async def finished(parts: Parts, job_id: str, seconds: float) -> JobRow:
    """The job once it ended, or as it stands after `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    async with JobWatch(parts, job_id) as watch:
        parts.jobs.wake()
        while True:
            row = await run_in_threadpool(job_row, parts, None, job_id)
            left = deadline - asyncio.get_running_loop().time()
            if row.state in FINAL or left <= 0:
                return row
            await watch.change(min(left, 1.0))
