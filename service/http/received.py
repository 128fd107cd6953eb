"""Bytes that come as a body: what was announced of them, and how they are written down while they come.

Called by the routes that take files: blobs, and uploads in parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fastapi import Request
from starlette.requests import ClientDisconnect

from registry.errors import InvalidName, InvalidParameter, TooSlow
from registry.names import DIGEST_PATTERN
from registry.uploads import too_large
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
    """Write the body as it comes, in threads; returns its size.

    Raises TooLarge, and where it breaks off ClientDisconnect or TooSlow: what came before is written then too.
    """
    pending: list[bytes] = []
    waiting = size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            pending.append(chunk)
            waiting += len(chunk)
            if waiting >= BUFFER:
                await in_thread(write, b"".join(pending))
                pending, waiting = [], 0
    except (ClientDisconnect, TooSlow):
        await in_thread(write, b"".join(pending))
        raise
    if pending:
        await in_thread(write, b"".join(pending))
    return size
