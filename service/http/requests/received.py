"""Bytes that come as a body: what was announced of them, and how they are written down while they come.

Called by the routes that take files: blobs, and uploads in parts.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Self

from anyio import CancelScope
from fastapi import Request
from starlette.requests import ClientDisconnect

from registry.errors import InvalidName, InvalidParameter, TooSlow
from registry.names import DIGEST_PATTERN
from registry.uploads.files import too_large
from service.http.thread_turns import in_thread

BUFFER = 1024 * 1024
"""Bytes gathered before a write in a thread."""


def check_digest(digest: str) -> None:
    """Raises InvalidName unless `digest` is `sha256:` and 64 lower-case hex digits."""
    if not re.fullmatch(DIGEST_PATTERN, digest) or digest.endswith("\n"):
        raise InvalidName("A blob is named 'sha256:' and 64 lower-case hex digits.", param="digest")


def announced_length(request: Request) -> int | None:
    """The Content-Length, None for a chunked body; raises InvalidParameter for what is not a number."""
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InvalidParameter("Content-Length is not a number.", param="content-length")
    return int(text)


async def received(request: Request, write: Callable[[bytes], object], *, limit: int) -> int:
    """Write the body as it comes, in threads, each part while the next one is on its way; returns its size.

    Raises TooLarge, and where it breaks off ClientDisconnect or TooSlow: what came before is written then too. When it
    ends, however it does, nothing is being written any more.
    """
    pending: list[bytes] = []
    waiting = size = 0
    async with _Behind(write) as behind:
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                pending.append(chunk)
                waiting += len(chunk)
                if waiting >= BUFFER:
                    await behind.write(pending)
                    pending, waiting = [], 0
        except (ClientDisconnect, TooSlow):
            await behind.write(pending)
            raise
        if pending:
            await behind.write(pending)
    return size


class _Behind:
    """Writes one part in a thread while the next one is gathered; what goes wrong is raised by the call after."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._running: asyncio.Task[object] | None = None

    async def write(self, pieces: Sequence[bytes]) -> None:
        """Begin to write, once what came before is written."""
        await self._done()
        self._running = asyncio.create_task(in_thread(self._write_all, pieces))

    def _write_all(self, pieces: Sequence[bytes]) -> None:
        """In the thread: one after the other, for putting them together would be another copy on the event loop."""
        for piece in pieces:
            self._write(piece)

    async def _done(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            with CancelScope(shield=True):  # nobody closes the file while a thread writes to it
                await asyncio.wait([running])
            running.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait for the last part; where it went wrong that is what is raised, for nobody may count on it."""
        await self._done()
