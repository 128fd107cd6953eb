"""State of an upload in parts, and the pauses after its errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.errors import Busy, NotFound, SoupError, TooSlow, Unavailable, WrongOffset

UPLOADS = "/v1/blobs/uploads"
BINARY = {"content-type": "application/octet-stream"}
TRIES = 8
"""Consecutive tries without any progress before an upload fails."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
PASSING = (Unavailable, WrongOffset, NotFound, TooSlow, Busy)
"""Errors that a retry may cure: an unavailable or full server, a concurrent upload of the same, an expired upload."""


@dataclass
class Upload:
    """An unfinished upload of one blob; `offset` is the number of bytes that the server has acknowledged."""

    digest: str
    size: int
    part_bytes: int
    progress: Callable[[int], object]
    offset: int = 0


def pause_after(error: SoupError, tries: int) -> float:
    """Seconds to wait before the next try."""
    requested = error.retry_after if isinstance(error, Busy) else 0.0
    return min(max(requested, FIRST_PAUSE * 2.0 ** (tries - 1)), LONGEST_PAUSE)
