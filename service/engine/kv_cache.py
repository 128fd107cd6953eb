"""Keys and values of sequences between passes: one row of memory for each, in slabs of one capacity.

Rows of one capacity lie behind each other in one tensor a layer, those in use first, so that the newest tokens of all
of them attend in one call without anything being gathered or copied. A sequence that outgrows its row moves to one of
twice the capacity; when a row is given up, the last one moves into its place. Bytes are counted by row; rows that
are nobody's take what is free of the limit, and no more. What is to
outlive its row is copied out of it, without the row's spare positions, and takes no part in anybody's attention.

Knows no requests. Used by the engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from service.engine.kv_budget import row_capacity

GROWTH = 4
"""A slab that is full grows by one row in so many, where that is free: little is copied for each row."""


class Slab:
    """Rows of `capacity` positions: (rows, heads, capacity, size) of keys and of values for each layer."""

    def __init__(self, capacity: int, may_spare: Callable[[int], bool] = lambda _positions: True) -> None:
        self.capacity = capacity
        self._may_spare = may_spare
        self.rows: list[Row] = []
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.room = 0

    def of(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """A layer's keys and values; made like `key` and `value` (heads, new, size) where there are none yet."""
        found = self.layers.get(layer)
        if found is None:
            found = tuple(  # type: ignore[assignment]
                states.new_zeros((self.room, states.shape[0], self.capacity, states.shape[-1]))
                for states in (key, value)
            )
            self.layers[layer] = found  # type: ignore[assignment]
        return found  # type: ignore[return-value]

    def take(self, row: Row) -> None:
        """Give `row` the first free place."""
        if len(self.rows) == self.room:
            more = max(1, self.room // GROWTH)
            self._resize(self.room + (more if self._may_spare((more - 1) * self.capacity) else 1))
        row.slab, row.place = self, len(self.rows)
        self.rows.append(row)

    def give_up(self, row: Row) -> None:
        """Free a row's place; the last row takes it.

        What was there is wiped: a number that is none, left behind by one sequence, would reach the others of its slab
        through the positions that are masked for them.
        """
        last = self.rows.pop()
        for pair in self.layers.values():
            for states in pair:
                states[row.place, :, : row.touched].zero_()
                if last is not row:
                    states[row.place, :, : last.touched] = states[last.place, :, : last.touched]
                    states[last.place, :, : last.touched].zero_()
        if last is not row:
            last.place = row.place
            self.rows[row.place] = last
        if not self.rows:
            self.layers.clear()
            self.room = 0
        elif len(self.rows) <= self.room // 2:
            self._resize(len(self.rows) + len(self.rows) // GROWTH)

    @property
    def spare(self) -> int:
        """Positions of places that are nobody's."""
        return (self.room - len(self.rows)) * self.capacity

    def give_up_spare(self) -> None:
        """Free the places that are nobody's."""
        if self.spare:
            self._resize(len(self.rows))

    def _resize(self, room: int) -> None:
        for layer, pair in self.layers.items():
            larger = []
            for states in pair:
                new = states.new_zeros((room, *states.shape[1:]))
                new[: len(self.rows)] = states[: len(self.rows)]
                larger.append(new)
            self.layers[layer] = larger[0], larger[1]
        self.room = room


@dataclass(eq=False)
class Row:
    """The keys and values of one sequence: `length` positions are there, those of a prefix included.

    During a pass `length` is what was there before it. A `KVStore` of `packing`.
    """

    slab: Slab = field(repr=False)
    place: int = 0
    length: int = 0
    touched: int = 0
    """Positions that were ever written, also by a pass that failed."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep `keys` and `values` (heads, new, size) behind the others; gives all, (heads, all, size)."""
        all_keys, all_values = (states[self.place] for states in self.slab.of(layer, keys, values))
        end = self.length + keys.shape[1]
        self.touched = max(self.touched, end)
        all_keys[:, self.length : end] = keys
        all_values[:, self.length : end] = values
        return all_keys[:, :end], all_values[:, :end]


@dataclass(frozen=True)
class KVCopy:
    """Keys and values of `length` positions, each (heads, length, size), by layer: views of one `buffer`."""

    buffer: Tensor
    layers: Mapping[int, tuple[Tensor, Tensor]]
    length: int


class KVCache:
    """The rows of one base model."""

    def __init__(self) -> None:
        self._slabs: dict[int, Slab] = {}
        self._rows: dict[Hashable, Row] = {}
        self.may_spare: Callable[[int], bool] = lambda _positions: True
        """Whether so many positions more may be in rows that are nobody's."""

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._rows))

    def reserve(self, owner: Hashable, positions: int) -> Row:
        """A row with room for so many positions, with what the sequence's row has kept so far."""
        row = self._rows.get(owner)
        capacity = row_capacity(positions)
        if row is not None and row.slab.capacity >= positions:
            return row
        slab = self._slabs.setdefault(capacity, Slab(capacity, lambda positions: self.may_spare(positions)))
        if row is None:
            row = self._rows[owner] = Row(slab)
            slab.take(row)
            return row
        moved = Row(slab, length=row.length)
        slab.take(moved)
        _copy(row, moved, row.length)
        self.release(owner)
        self._rows[owner] = moved
        if not self.may_spare(0):
            row.slab.give_up_spare()
        return moved

    @property
    def spare(self) -> int:
        """Positions of rows that are nobody's."""
        return sum(slab.spare for slab in self._slabs.values())

    def give_up_spare(self) -> None:
        """Free the rows that are nobody's."""
        for slab in self._slabs.values():
            slab.give_up_spare()

    def copy(self, source: Hashable, owner: Hashable, positions: int, *, room: int) -> None:
        """Give a new sequence the first `positions` of another's, in a row with this `room`."""
        row = self.reserve(owner, room)
        there = self._rows[source]
        _copy(there, row, positions)
        row.length = positions

    def copied_out(self, owner: Hashable, positions: int) -> KVCopy | None:
        """A copy of the first `positions` of a row; None where fewer are there, or where any is no finite number."""
        row = self._rows.get(owner)
        if row is None or not 0 < positions <= row.length:
            return None
        parts = {
            layer: [states[row.place, :, :positions] for states in pair] for layer, pair in row.slab.layers.items()
        }
        flat = [states for pair in parts.values() for states in pair]
        buffer = flat[0].new_empty(sum(states.numel() for states in flat))
        layers: dict[int, tuple[Tensor, Tensor]] = {}
        at = 0
        for layer, pair in parts.items():
            copies = []
            for states in pair:
                copies.append(buffer[at : at + states.numel()].view(states.shape).copy_(states))
                at += states.numel()
            layers[layer] = copies[0], copies[1]
        return KVCopy(buffer, layers, positions) if bool(buffer.isfinite().all()) else None

    def copy_in(self, copied: KVCopy, owner: Hashable, positions: int, *, room: int) -> None:
        """Give a new sequence the first `positions` of what was copied out, in a row with this `room`."""
        row = self.reserve(owner, room)
        row.length = 0
        for layer, pair in copied.layers.items():
            keys, values = (states[:, :positions] for states in pair)
            row.write(layer, keys, values)
        row.length = positions

    def fill(self, owner: Hashable, states: Tensor) -> None:
        """Put keys and values (layers, 2, heads, length, size) into an empty row."""
        row = self._rows[owner]
        for layer, (keys, values) in enumerate(states):
            row.write(layer, keys, values)
        row.length = states.shape[3]

    def release(self, owner: Hashable) -> None:
        """Give up a sequence's row, if it has one."""
        row = self._rows.pop(owner, None)
        if row is not None:
            row.slab.give_up(row)


def _copy(source: Row, target: Row, positions: int) -> None:
    for layer, pair in source.slab.layers.items():
        old = [states[source.place] for states in pair]
        for states, new in zip(old, target.slab.of(layer, old[0], old[1]), strict=True):
            new[target.place, :, :positions] = states[:, :positions]
    target.touched = max(target.touched, positions)


class SlabDecodes:
    """The newest tokens of rows of one slab, which attend in one call; a `DecodeGroup` of `packing`.

    `rows` are in use; `tokens` (rows,) are the places of their tokens in the pass.
    """

    def __init__(self, slab: Slab, rows: Sequence[Row], tokens: Sequence[int], device: torch.device | str) -> None:
        count = len(slab.rows)
        for row in rows:
            row.touched = max(row.touched, row.length + 1)
        self._slab = slab
        self.tokens = torch.tensor(tokens, device=device)
        self._places = torch.tensor([row.place for row in rows], device=device)
        self._in_place = [row.place for row in rows] == list(range(count))
        self._lengths = torch.tensor([row.length for row in rows], device=device)
        self._longest = max(row.length for row in rows) + 1
        self._count = count
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """(tokens, heads, size); see `packing.DecodeGroup`."""
        keys, values = self._slab.of(layer, key, value)
        keys[self._places, :, self._lengths] = key.transpose(0, 1)
        values[self._places, :, self._lengths] = value.transpose(0, 1)
        heads, _, size = query.shape
        asked = query.transpose(0, 1)
        if not self._in_place:  # rows without a token in this pass ask for nothing
            asked = query.new_zeros((self._count, heads, size)).index_copy(0, self._places, asked)
        groups = heads // keys.shape[1]
        found = F.scaled_dot_product_attention(
            asked.reshape(self._count, keys.shape[1], groups, size),
            keys[: self._count, :, : self._longest],
            values[: self._count, :, : self._longest],
            attn_mask=self._mask(window, query.dtype),
            scale=scale,
        )
        found = found.reshape(self._count, heads, -1)
        return found if self._in_place else found[self._places]

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """(rows, 1, 1, longest), added to the scores: 0 for what a row's newest token sees, all where it has none."""
        known = self._masks.get((window, dtype))
        if known is None:
            at = torch.arange(self._longest, device=self._lengths.device)
            seen = at <= self._lengths[:, None]
            if window is not None:
                seen &= at > self._lengths[:, None] - window
            known = torch.zeros((self._count, self._longest), dtype=dtype, device=at.device)
            known[self._places] = torch.zeros((), dtype=dtype, device=at.device).masked_fill(~seen, float("-inf"))
            known = self._masks[window, dtype] = known[:, None, None]
        return known
