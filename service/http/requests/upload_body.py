"""Write the body of an upload while it arrives, and check its digest and length parameters.

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
    """Raise InvalidName unless `digest` is `sha256:` and 64 lower-case hex digits."""
    if not re.fullmatch(DIGEST_PATTERN, digest) or digest.endswith("\n"):
        raise InvalidName("A blob is named 'sha256:' and 64 lower-case hex digits.", param="digest")


def announced_length(request: Request) -> int | None:
    """Return the Content-Length, None for a chunked body; raises InvalidParameter if it is not a number."""
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InvalidParameter("Content-Length is not a number.", param="content-length")
    return int(text)


async def write_body(request: Request, write: Callable[[bytes], object], *, limit: int) -> int:
    """Write the body in threads, each piece while the next one arrives, and return its size in bytes.

    Raises TooLarge, and for an incomplete body ClientDisconnect or TooSlow, after the bytes received so far are
    written. All writes have ended when it returns or raises.
    """
    pending: list[bytes] = []
    pending_bytes = size = 0
    async with _BackgroundWriter(write) as writer:
        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                pending.append(chunk)
                pending_bytes += len(chunk)
                if pending_bytes >= BUFFER:
                    await writer.write(pending)
                    pending, pending_bytes = [], 0
        except (ClientDisconnect, TooSlow):
            await writer.write(pending)
            raise
        if pending:
            await writer.write(pending)
    return size


class _BackgroundWriter:
    """Writer of chunks in a thread, one call at a time; an error is raised by the next call or at the end."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._running: asyncio.Task[object] | None = None

    async def write(self, chunks: Sequence[bytes]) -> None:
        """Start to write `chunks`, after the end of the write before."""
        await self._finish()
        self._running = asyncio.create_task(in_thread(self._write_all, chunks))

    def _write_all(self, chunks: Sequence[bytes]) -> None:
        for chunk in chunks:  # one by one: to join them would copy them once more
            self._write(chunk)

    async def _finish(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            with CancelScope(shield=True):  # the file must not be closed while a thread writes to it
                await asyncio.wait([running])
            running.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait for the last write and raise its error, which takes precedence over any other."""
        await self._finish()
