"""An upload in parts on its way, and how long to wait after an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.errors import Busy, NotFound, SoupError, TooSlow, Unavailable, WrongOffset

UPLOADS = "/v1/blobs/uploads"
BINARY = {"content-type": "application/octet-stream"}
TRIES = 8
"""Tries in a row that get no further."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
PASSING = (Unavailable, WrongOffset, NotFound, TooSlow, Busy)
"""What may be over a moment later: a server that is away or full, another who sends the same, an upload that ended."""


@dataclass
class Upload:
    """One blob on its way; `held` is how much of it the server has said it holds."""

    digest: str
    size: int
    part_bytes: int
    progress: Callable[[int], object]
    held: int = 0


def pause_after(error: SoupError, tries: int) -> float:
    """Seconds before the next try."""
    requested = error.retry_after if isinstance(error, Busy) else 0.0
    return min(max(requested, FIRST_PAUSE * 2.0 ** (tries - 1)), LONGEST_PAUSE)
