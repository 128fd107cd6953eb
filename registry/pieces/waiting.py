"""Pieces that wait for their turn at a place: each is made when there is room for it, since it may carry much."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from registry.pieces.contract import Piece


@dataclass(frozen=True)
class Try:
    """A piece, and how many processes were lost under it so far."""

    piece: Piece[Any]
    lost: int = 0


class Waiting:
    """Pieces in their order, but that those which are tried again come first."""

    def __init__(self, pieces: Iterable[Piece[Any]]) -> None:
        self._new, self._again = iter(pieces), deque[Try]()

    def take(self) -> Try | None:
        """The next one; None where there is none at present."""
        if self._again:
            return self._again.popleft()
        return next((Try(piece) for piece in self._new), None)

    def again(self, one: Try) -> None:
        """Have a piece tried once more."""
        self._again.appendleft(one)
