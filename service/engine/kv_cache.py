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
    """Rows of `capacity` positions: (rows, heads, capacity, size) of keys and of values for each layer."""

    def __init__(self, capacity: int, may_spare: Callable[[int], bool] = lambda _positions: True) -> None:
        self.capacity = capacity
        self._may_spare = may_spare
        self.rows: list[Row] = []
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.allocated_rows = 0
        """Rows that memory is allocated for."""

    def layer(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, allocated in the form of `key` and `value` (heads, new, size) at first."""
        if layer not in self.layers:
            self.layers[layer] = self._allocate(key), self._allocate(value)
        return self.layers[layer]

    def _allocate(self, states: Tensor) -> Tensor:
        return states.new_zeros((self.allocated_rows, states.shape[0], self.capacity, states.shape[-1]))

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
        for pair in self.layers.values():
            for states in pair:
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
        for layer, (keys, values) in self.layers.items():
            self.layers[layer] = self._resized(keys, count), self._resized(values, count)
        self.allocated_rows = count

    def _resized(self, states: Tensor, count: int) -> Tensor:
        resized = states.new_zeros((count, *states.shape[1:]))
        resized[: len(self.rows)] = states[: len(self.rows)]
        return resized


@dataclass(eq=False)
class Row:
    """The keys and values of one sequence: `length` positions, those of virtual tokens included.

    `length` excludes the positions of a pass that runs. A `KVStore` of `packing`.
    """

    slab: Slab = field(repr=False)
    index: int = 0
    length: int = 0
    written: int = 0
    """Positions that were ever written, also by a pass that failed."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append `keys` and `values` (heads, new, size); return all of them, (heads, all, size)."""
        all_keys, all_values = (states[self.index] for states in self.slab.layer(layer, keys, values))
        end = self.length + keys.shape[1]
        self.written = max(self.written, end)
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

    def free_spare(self) -> None:
        """Free the memory of spare rows."""
        for slab in self._slabs.values():
            slab.free_spare()

    def copy(self, source: Hashable, sequence: Hashable, positions: int, *, reserve: int) -> None:
        """Copy the first `positions` of another sequence to a new one, in a row that holds `reserve` positions."""
        row = self.reserve(sequence, reserve)
        _copy(self._rows[source], row, positions)
        row.length = positions

    def copy_out(self, sequence: Hashable, positions: int) -> KVCopy | None:
        """Return a copy of the first `positions` of a row; None if it has fewer, or a number that is not finite."""
        row = self._rows.get(sequence)
        if row is None or not 0 < positions <= row.length:
            return None
        views = {
            layer: [states[row.index, :, :positions] for states in pair] for layer, pair in row.slab.layers.items()
        }
        flat = [states for pair in views.values() for states in pair]
        buffer = flat[0].new_empty(sum(states.numel() for states in flat))
        layers: dict[int, tuple[Tensor, Tensor]] = {}
        start = 0
        for layer, pair in views.items():
            copies = []
            for states in pair:
                copies.append(buffer[start : start + states.numel()].view(states.shape).copy_(states))
                start += states.numel()
            layers[layer] = copies[0], copies[1]
        return KVCopy(buffer, layers, positions) if bool(buffer.isfinite().all()) else None

    def copy_in(self, copied: KVCopy, sequence: Hashable, positions: int, *, reserve: int) -> None:
        """Write the first `positions` of a copy to a new sequence, in a row that holds `reserve` positions."""
        row = self.reserve(sequence, reserve)
        row.length = 0
        for layer, (keys, values) in copied.layers.items():
            row.write(layer, keys[:, :positions], values[:, :positions])
        row.length = positions

    def fill(self, sequence: Hashable, states: Tensor) -> None:
        """Write keys and values (layers, 2, heads, length, size) to an empty row."""
        row = self._rows[sequence]
        for layer, (keys, values) in enumerate(states):
            row.write(layer, keys, values)
        row.length = states.shape[3]

    def release(self, sequence: Hashable) -> None:
        """Release a sequence's row, if it has one."""
        row = self._rows.pop(sequence, None)
        if row is not None:
            row.slab.remove(row)


def _copy(source: Row, target: Row, positions: int) -> None:
    for layer, pair in source.slab.layers.items():
        keys, values = (states[source.index] for states in pair)
        target_keys, target_values = target.slab.layer(layer, keys, values)
        target_keys[target.index, :, :positions] = keys[:, :positions]
        target_values[target.index, :, :positions] = values[:, :positions]
    target.written = max(target.written, positions)


class SlabDecodes:
    """The newest tokens of rows of one slab, which attend in one call; a `DecodeGroup` of `packing`.

    `tokens` are their positions in the pass, in the order of `rows`.
    """

    def __init__(self, slab: Slab, rows: Sequence[Row], tokens: Sequence[int], device: torch.device | str) -> None:
        count = len(slab.rows)
        for row in rows:
            row.written = max(row.written, row.length + 1)
        self._slab = slab
        self.tokens = torch.tensor(tokens, device=device)
        self._indices = torch.tensor([row.index for row in rows], device=device)
        self._is_whole_slab = [row.index for row in rows] == list(range(count))
        self._lengths = torch.tensor([row.length for row in rows], device=device)
        self._longest = max(row.length for row in rows) + 1
        self._count = count
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention (tokens, heads, size); see `packing.DecodeGroup`."""
        keys, values = self._slab.layer(layer, key, value)
        keys[self._indices, :, self._lengths] = key.transpose(0, 1)
        values[self._indices, :, self._lengths] = value.transpose(0, 1)
        heads, _, size = query.shape
        queries = query.transpose(0, 1)
        if not self._is_whole_slab:  # rows without a token in this pass get a query of zeros
            queries = query.new_zeros((self._count, heads, size)).index_copy(0, self._indices, queries)
        outputs = F.scaled_dot_product_attention(
            queries.reshape(self._count, keys.shape[1], heads // keys.shape[1], size),
            keys[: self._count, :, : self._longest],
            values[: self._count, :, : self._longest],
            attn_mask=self._mask(window, query.dtype),
            scale=scale,
        )
        outputs = outputs.reshape(self._count, heads, -1)
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
