"""Keys and values of sequences between passes: one row of memory for each, in slabs of rows of equal capacity.

The rows of a slab are one tensor in each layer, with the rows in use first. So the newest tokens of all of them attend
in one call, without gathering or copying. A sequence that outgrows its row moves to one of twice the capacity; when a
row is released, the last one takes its place. Memory is counted by row; spare rows take what is free of the limit, and
no more. A prefix that outlives its row is copied out of it, without unused positions, and attends to nothing.

Knows no requests. Used by the engine's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from service.engine.kv_budget import row_capacity

GROWTH = 4
"""A full slab grows by one row for each GROWTH rows, if there is free memory: amortises the copying."""


class Slab:
    """Rows of `capacity` positions: in each layer (rows, heads, capacity, size), all heads of keys, then of values."""

    def __init__(self, capacity: int, may_spare: Callable[[int], bool] = lambda _positions: True) -> None:
        self.capacity = capacity
        self._may_spare = may_spare
        self.rows: list[Row] = []
        self.layers: dict[int, Tensor] = {}
        self.allocated_rows = 0
        """Rows that memory is allocated for."""

    def layer(self, layer: int, states: Tensor) -> Tensor:
        """Keys and values of a layer, at first allocated for `states` (tokens, heads, size)."""
        if layer not in self.layers:
            _, heads, size = states.shape
            self.layers[layer] = states.new_zeros((self.allocated_rows, heads, self.capacity, size))
        return self.layers[layer]

    def add(self, row: Row) -> None:
        """Give a row the first free index."""
        if len(self.rows) == self.allocated_rows:
            more = max(1, self.allocated_rows // GROWTH)
            self._resize(self.allocated_rows + (more if self._may_spare((more - 1) * self.capacity) else 1))
        row.slab, row.index = self, len(self.rows)
        self.rows.append(row)

    def remove(self, row: Row) -> None:
        """Remove a row; the last row moves to its index.

        Released memory is zeroed: a NaN left behind by one sequence would reach the others of the slab through masked
        positions.
        """
        last = self.rows.pop()
        for states in self.layers.values():
            states[row.index, :, : row.written].zero_()
            if last is not row:
                states[row.index, :, : last.written] = states[last.index, :, : last.written]
                states[last.index, :, : last.written].zero_()
        if last is not row:
            last.index = row.index
            self.rows[row.index] = last
        if not self.rows:
            self.layers.clear()
            self.allocated_rows = 0
        elif len(self.rows) <= self.allocated_rows // 2:
            self._resize(len(self.rows) + len(self.rows) // GROWTH)

    @property
    def spare_positions(self) -> int:
        """Positions of spare rows."""
        return (self.allocated_rows - len(self.rows)) * self.capacity

    def free_spare(self) -> None:
        """Free the memory of spare rows."""
        if self.spare_positions:
            self._resize(len(self.rows))

    def _resize(self, count: int) -> None:
        for layer, states in self.layers.items():
            self.layers[layer] = states.new_zeros((count, *states.shape[1:]))
            self.layers[layer][: len(self.rows)] = states[: len(self.rows)]
        self.allocated_rows = count


@dataclass(eq=False)
class Row:
    """The keys and values of one sequence: `length` positions, those of virtual tokens included.

    `length` excludes the positions of a pass that runs.
    """

    slab: Slab = field(repr=False)
    index: int = 0
    length: int = 0
    written: int = 0
    """Positions that were ever written, also by a pass that failed."""

    def read(self, layer: int, length: int) -> Tensor:
        """The first `length` keys and values of a layer, (heads, length, size)."""
        return self.slab.layers[layer][self.index, :, :length]

    def fill(self, layer: int, states: Tensor) -> None:
        """Set the first keys and values of a layer to `states` (heads, length, size)."""
        self.slab.layer(layer, states.transpose(0, 1))[self.index, :, : states.shape[1]] = states
        self.written = max(self.written, states.shape[1])


@dataclass(frozen=True)
class KVCopy:
    """Keys and values of `length` positions, (heads, length, size) by layer: views of one `buffer`."""

    buffer: Tensor
    layers: Mapping[int, Tensor]
    length: int

    def write(self, row: Row, positions: int) -> None:
        """Write the first `positions` to a row."""
        for layer, states in self.layers.items():
            row.fill(layer, states[:, :positions])


class KVCache:
    """The rows of one base model, by sequence."""

    def __init__(self) -> None:
        self._slabs: dict[int, Slab] = {}
        self._rows: dict[Hashable, Row] = {}
        self.may_spare: Callable[[int], bool] = lambda _positions: True
        """Returns True if spare rows may take this number of further positions."""

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._rows))

    def reserve(self, sequence: Hashable, positions: int) -> Row:
        """Return the sequence's row, allocated or moved to a larger one so that it holds `positions`."""
        row = self._rows.get(sequence)
        capacity = row_capacity(positions)
        if row is not None and row.slab.capacity >= positions:
            return row
        slab = self._slabs.setdefault(capacity, Slab(capacity, lambda positions: self.may_spare(positions)))
        if row is None:
            row = self._rows[sequence] = Row(slab)
            slab.add(row)
            return row
        moved = Row(slab, length=row.length)
        slab.add(moved)
        _copy(row, moved, row.length)
        self.release(sequence)
        self._rows[sequence] = moved
        if not self.may_spare(0):
            row.slab.free_spare()
        return moved

    @property
    def spare_positions(self) -> int:
        """Positions of spare rows."""
        return sum(slab.spare_positions for slab in self._slabs.values())

    @torch.inference_mode()
    def free_spare(self) -> None:
        """Free the memory of spare rows."""
        for slab in self._slabs.values():
            slab.free_spare()

    def copy(self, source: Hashable, row: Row, positions: int) -> None:
        """Copy the first `positions` of a sequence to the row of another one."""
        _copy(self._rows[source], row, positions)

    def copy_out(self, sequence: Hashable, positions: int) -> KVCopy | None:
        """Return a copy of the first `positions` of a row; None if it has fewer, or a number that is not finite."""
        row = self._rows.get(sequence)
        if row is None or not 0 < positions <= row.length:
            return None
        views = [row.read(layer, positions) for layer in row.slab.layers]
        buffer = views[0].new_empty(sum(states.numel() for states in views))
        pieces = torch.split(buffer, [states.numel() for states in views])
        copies = [piece.view(states.shape).copy_(states) for piece, states in zip(pieces, views, strict=True)]
        layers = dict(zip(row.slab.layers, copies, strict=True))
        return KVCopy(buffer, layers, positions) if bool(buffer.isfinite().all()) else None

    def release(self, sequence: Hashable) -> None:
        """Release a sequence's row, if it has one."""
        row = self._rows.pop(sequence, None)
        if row is not None:
            row.slab.remove(row)


def _copy(source: Row, target: Row, positions: int) -> None:
    for layer in source.slab.layers:
        target.fill(layer, source.read(layer, positions))


class SlabWrites:
    """The new tokens of a pass in rows of one slab, whose keys and values are kept.

    `segments` are rows with the index of their first token in the pass and their number of tokens.
    """

    def __init__(self, slab: Slab, segments: Sequence[tuple[Row, int, int]], device: torch.device | str) -> None:
        tokens: list[int] = []
        rows: list[int] = []
        positions: list[int] = []
        for row, start, count in segments:
            tokens += range(start, start + count)
            rows += [row.index] * count
            positions += range(row.length, row.length + count)
            row.written = max(row.written, row.length + count)
        self._slab = slab
        self._tokens, self._rows, self._positions = torch.tensor([tokens, rows, positions], device=device).unbind()
        self._slots: dict[int, Tensor] = {}

    def append(self, layer: int, states: Tensor) -> None:
        """Write the keys and values out of `states` (tokens of the pass, heads, size)."""
        cached, heads = self._slab.layer(layer, states), states.shape[1]
        slots = self._slots.get(heads)
        if slots is None:  # in the layer seen as (rows * heads * capacity, size)
            rows = self._rows[:, None] * heads + torch.arange(heads, device=states.device)
            slots = self._slots[heads] = (rows * self._slab.capacity + self._positions[:, None]).flatten()
        new = states if len(states) == len(self._tokens) else states[self._tokens]
        cached.view(-1, states.shape[-1]).index_copy_(0, slots, new.reshape(len(slots), -1))


class SlabDecodes:
    """The newest tokens of rows of one slab, which attend in one call after their keys and values are written.

    `decoded` are rows with the index of their token in the pass; `tokens` are these indices.
    """

    def __init__(self, slab: Slab, decoded: Sequence[tuple[Row, int]], device: torch.device | str) -> None:
        count, rows = len(slab.rows), [row for row, _ in decoded]
        self._slab = slab
        self.tokens = torch.tensor([token for _, token in decoded], device=device)
        self._indices = torch.tensor([row.index for row in rows], device=device)
        self._is_whole_slab = [row.index for row in rows] == list(range(count))
        self._lengths = torch.tensor([row.length for row in rows], device=device)
        self._longest = max(row.length for row in rows) + 1
        self._count = count
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def attend(self, layer: int, query: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention (tokens, heads, size) of `query` (tokens, heads, size)."""
        states = self._slab.layers[layer][: self._count, :, : self._longest]
        keys, values = torch.split(states, [states.shape[1] // 2] * 2, dim=1)
        _, heads, size = query.shape
        if not self._is_whole_slab:  # rows without a token in this pass get a query of zeros
            query = query.new_zeros((self._count, heads, size)).index_copy(0, self._indices, query)
        outputs = F.scaled_dot_product_attention(
            torch.unflatten(query, 1, (keys.shape[1], -1)),
            keys,
            values,
            attn_mask=self._mask(window, query.dtype),
            scale=scale,
        )
        outputs = outputs.flatten(1, 2)
        return outputs if self._is_whole_slab else outputs[self._indices]

    def _mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive mask (rows, 1, 1, longest): 0 for what the newest token of a row sees, and in rows without one."""
        mask = self._masks.get((window, dtype))
        if mask is None:
            positions = torch.arange(self._longest, device=self._lengths.device)
            visible = positions <= self._lengths[:, None]
            if window is not None:
                visible &= positions > self._lengths[:, None] - window
            mask = torch.zeros((self._count, self._longest), dtype=dtype, device=positions.device)
            zero = torch.zeros((), dtype=dtype, device=positions.device)
            mask[self._indices] = zero.masked_fill(~visible, float("-inf"))
            mask = self._masks[window, dtype] = mask[:, None, None]
        return mask
