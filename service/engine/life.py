"""When a request came to the engine, began, gave its first token and ended, for whoever wants to know.

Whoever does sets `watching` before requests are submitted in the same context: what it holds is called once for each of
them, in the engine's thread, and must only hand over. It hears of no text and no token.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Life:
    """One request. Moments are monotonic seconds; `began` and `first` are None where it ended before."""

    base_id: str
    adapter: str | None
    """Its digest."""
    end: str
    """`finished`, `failed` or `cancelled`."""
    came: float
    began: float | None
    """When a step first had a part of it."""
    first: float | None
    """When its first token was drawn."""
    ended: float
    read: int
    written: int


Told = Callable[[Life], None]
watching: ContextVar[Told | None] = ContextVar("watching", default=None)
