"""Memory budget for keys and values: bytes are reserved here before anything is allocated. Knows no tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from registry.errors import InvalidParameter

Owner = TypeVar("Owner", bound=Hashable)

MIN_ROW_POSITIONS = 64
"""Positions of the smallest row; the others are twice, four times, ... as long."""


def row_capacity(positions: int) -> int:
    """Positions of the smallest row that holds `positions`."""
    return max(MIN_ROW_POSITIONS, 1 << (positions - 1).bit_length())


class KVBudget:
    """At most `limit` bytes (None: no limit); `bytes_per_position` takes a base model's id.

    `fits`, `check` and `max_positions` may be called from any thread; the others from the engine's thread only.
    """

    def __init__(self, limit: int | None, bytes_per_position: Callable[[str], int] = lambda _base_id: 0) -> None:
        self.limit = limit
        self.bytes_per_position = bytes_per_position
        self._reserved: dict[Hashable, int] = {}
        self.bytes = 0
        """Bytes that are reserved."""

    def row_bytes(self, base_id: str, positions: int) -> int:
        """Bytes of the row that holds `positions`."""
        return row_capacity(positions) * self.bytes_per_position(base_id)

    def fits(self, base_id: str, positions: int) -> bool:
        """Return True if a sequence of `positions` fits into an empty budget."""
        return self.limit is None or self.row_bytes(base_id, positions) <= self.limit

    def check(self, base_id: str, positions: int, *, param: str) -> None:
        """Raise InvalidParameter for a sequence whose keys and values would never fit."""
        if not self.fits(base_id, positions):
            raise InvalidParameter(
                f"{positions} tokens need a KV cache of {self.row_bytes(base_id, positions)} bytes; this server "
                f"has {self.limit} (SOUP_ENGINE_KV_BYTES): send or request fewer tokens.",
                param=param,
            )

    def max_positions(self, base_id: str) -> int | None:
        """The most positions that a sequence may have; None without a limit."""
        if self.limit is None or self.bytes_per_position(base_id) == 0:
            return None
        positions = MIN_ROW_POSITIONS
        while self.fits(base_id, 2 * positions):
            positions *= 2
        return positions if self.fits(base_id, positions) else 0

    def owners_to_preempt(
        self, owners: Sequence[Owner], base_id: str, positions: int, *, freeable: int = 0
    ) -> Sequence[Owner]:
        """The fewest of `owners`, from the first on, whose rows must be released for a new row to fit.

        `freeable` bytes are released besides. Empty if the row fits already, or not even with all of them released.
        """
        excess = 0 if self.limit is None else self.bytes - freeable + self.row_bytes(base_id, positions) - self.limit
        for count in range(len(owners) + 1):
            if sum(map(self.reserved, owners[:count])) >= excess:
                return owners[:count]
        return ()

    def reserve(self, owner: Hashable, base_id: str, positions: int) -> bool:
        """Reserve a row of `positions` for a sequence, or return False if it does not fit."""
        if self.shortfall(owner, base_id, positions) > 0:
            return False
        self._set(owner, max(self.reserved(owner), self.row_bytes(base_id, positions)))
        return True

    def shortfall(self, owner: Hashable, base_id: str, positions: int) -> int:
        """Bytes to release before `reserve` succeeds; 0 or less if it would now."""
        added = self.row_bytes(base_id, positions) - self.reserved(owner)
        return 0 if self.limit is None or added <= 0 else self.bytes + added - self.limit

    def reserve_exact(self, owner: Hashable, base_id: str, positions: int) -> bool:
        """Reserve exactly `positions`, which never grow, or return False if they do not fit."""
        size = positions * self.bytes_per_position(base_id)
        if self.limit is not None and self.bytes + size > self.limit:
            return False
        self._set(owner, size)
        return True

    def reserved(self, owner: Hashable) -> int:
        """Bytes that are reserved for an owner."""
        return self._reserved.get(owner, 0)

    def _set(self, owner: Hashable, size: int) -> None:
        self.bytes += size - self.reserved(owner)
        self._reserved[owner] = size

    def release(self, owner: Hashable) -> None:
        """Release what is reserved for an owner, if anything is."""
        self.bytes -= self._reserved.pop(owner, 0)
