"""Write the body of an upload while it arrives, and check its digest and length parameters.

Called by the routes that take files: blobs, and uploads in parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

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
    """Write the body in threads while it arrives, and return its size in bytes.

    Raises TooLarge, and for an incomplete body ClientDisconnect or TooSlow, after the bytes received so far are
    written.
    """
    pending: list[bytes] = []
    pending_bytes = size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            pending.append(chunk)
            pending_bytes += len(chunk)
            if pending_bytes >= BUFFER:
                await in_thread(_write_all, write, pending)
                pending, pending_bytes = [], 0
    except (ClientDisconnect, TooSlow):
        await in_thread(_write_all, write, pending)
        raise
    await in_thread(_write_all, write, pending)
    return size


def _write_all(write: Callable[[bytes], object], chunks: Sequence[bytes]) -> None:
    for chunk in chunks:  # one by one: to join them would copy them once more
        write(chunk)
