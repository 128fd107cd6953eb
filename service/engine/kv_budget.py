"""The memory that sequences' keys and values may take together, counted before any is allocated. Knows no tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from registry.errors import InvalidParameter

Owner = TypeVar("Owner", bound=Hashable)

MIN_ROW_POSITIONS = 64
"""Positions of the smallest row; the others are twice, four times, ... as long."""


def row_capacity(positions: int) -> int:
    """Positions of the row that so many need."""
    return max(MIN_ROW_POSITIONS, 1 << (positions - 1).bit_length())


class KVBudget:
    """At most `limit` bytes (None: no limit); `bytes_of` a base model's id gives those of one position there.

    Safe to ask from any thread whether a length fits at all; the rest is for the engine's thread.
    """

    def __init__(self, limit: int | None, bytes_of: Callable[[str], int] = lambda _base_id: 0) -> None:
        self.limit = limit
        self._bytes_of = bytes_of
        self._rows: dict[Hashable, int] = {}
        self.bytes = 0

    def needed(self, base_id: str, positions: int) -> int:
        """Bytes of the row that so many positions take."""
        return row_capacity(positions) * self._bytes_of(base_id)

    def fits(self, base_id: str, positions: int) -> bool:
        """Whether a sequence of so many positions ever has room."""
        return self.limit is None or self.needed(base_id, positions) <= self.limit

    def check(self, base_id: str, positions: int, *, param: str) -> None:
        """Raise InvalidParameter for a sequence whose keys and values would never fit."""
        if not self.fits(base_id, positions):
            raise InvalidParameter(
                f"{positions} tokens take {self.needed(base_id, positions)} bytes of keys and values, and this server "
                f"has {self.limit} for them (SOUP_ENGINE_KV_BYTES): send or ask for fewer.",
                param=param,
            )

    def most(self, base_id: str) -> int | None:
        """The most positions that a sequence has room for; None where there is no limit."""
        each = self._bytes_of(base_id)
        if self.limit is None or each == 0:
            return None
        positions = MIN_ROW_POSITIONS
        while self.fits(base_id, 2 * positions):
            positions *= 2
        return positions if self.fits(base_id, positions) else 0

    def enough_of(self, owners: Sequence[Owner], base_id: str, positions: int, *, besides: int = 0) -> Sequence[Owner]:
        """As many of these owners, from the first on, as must give up their rows for a new one to have room.

        None where it has room already, or would not have it without all of them. `besides` bytes go as well.
        """
        over = 0 if self.limit is None else self.bytes - besides + self.needed(base_id, positions) - self.limit
        for count in range(len(owners) + 1):
            if sum(self._rows.get(owner, 0) for owner in owners[:count]) >= over:
                return owners[:count]
        return ()

    def reserve(self, owner: Hashable, base_id: str, positions: int) -> bool:
        """Whether a sequence has room for so many positions, which is then kept for it."""
        if self.missing(owner, base_id, positions) > 0:
            return False
        self._take(owner, max(self.held(owner), self.needed(base_id, positions)))
        return True

    def missing(self, owner: Hashable, base_id: str, positions: int) -> int:
        """Bytes that would have to be released before a sequence has room for so many positions; at most 0 for none."""
        more = self.needed(base_id, positions) - self.held(owner)
        return 0 if self.limit is None or more <= 0 else self.bytes + more - self.limit

    def keep(self, owner: Hashable, base_id: str, positions: int) -> bool:
        """Whether exactly so many positions, which never become more, have room, which is then kept for them."""
        size = positions * self._bytes_of(base_id)
        if self.limit is not None and self.bytes + size > self.limit:
            return False
        self._take(owner, size)
        return True

    def held(self, owner: Hashable) -> int:
        """Bytes that are kept for a sequence, or for what is left of one."""
        return self._rows.get(owner, 0)

    def _take(self, owner: Hashable, size: int) -> None:
        self.bytes += size - self.held(owner)
        self._rows[owner] = size

    def release(self, owner: Hashable) -> None:
        """What was kept for a sequence is not needed any longer."""
        self.bytes -= self._rows.pop(owner, 0)
