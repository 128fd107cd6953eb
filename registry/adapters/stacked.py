"""Several adapters of one form as one module: every parameter has a slot for each, in front of its own dimensions.

With stacked parameters a module computes for (slots, tokens, hidden) what each adapter computes for its own
(tokens, hidden): one product for all of them instead of one each. Adapters of one form have the same structure,
settings and sizes; LoRAs of different ranks and scales are brought to one form first (`AdapterModule.stackable`).
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Hashable, Sequence

from torch import Tensor, nn

from registry.adapters.attach import AdapterModule


def form_of(module: AdapterModule) -> Hashable:
    """A key that is equal for adapters that can be stacked: type, settings, and names and shapes of tensors."""
    shapes = tuple((name, tuple(tensor.shape)) for name, tensor in module.named_parameters())
    return type(module), module.settings(), shapes, next(module.parameters()).dtype


def spare_capacity(count: int) -> int:
    """A number of slots for `count` adapters and some more, so that stacks grow rarely."""
    return max(2, 1 << (count - 1).bit_length())


class Stack:
    """Adapters of one form, each in a slot; the slots in use are the first ones.

    Holds weak references: an adapter that is evicted elsewhere is freed, although its slot still has a copy.
    """

    def __init__(self, example: AdapterModule) -> None:
        self.module = copy.deepcopy(example)
        self._adapters: list[weakref.ref[AdapterModule]] = []
        self._capacity = 0
        self._tensors: dict[str, Tensor] = {}

    @property
    def bytes(self) -> int:
        """Bytes of all slots, free ones included."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def has_capacity(self, count: int) -> bool:
        """Return True if `count` adapters have a slot each without new ones."""
        return count <= self._capacity

    def arrange(self, adapters: Sequence[AdapterModule], *, capacity: int | None = None) -> list[int]:
        """Put exactly these adapters, which are all different, into slots; return the slot of each.

        If there are too few slots, their number becomes `capacity`, by default `spare_capacity`. Copies only adapters
        that were not in the stack, and those that move from the end into a gap.
        """
        stacked: Sequence[AdapterModule | None] = [reference() for reference in self._adapters]
        if stacked != list(adapters):
            stacked = self._replace(stacked, adapters, spare_capacity(len(adapters)) if capacity is None else capacity)
        slots = {adapter: slot for slot, adapter in enumerate(stacked)}
        return [slots[adapter] for adapter in adapters]

    def _replace(
        self, stacked: Sequence[AdapterModule | None], adapters: Sequence[AdapterModule], capacity: int
    ) -> list[AdapterModule]:
        """Replace the `stacked` adapters, None where one was freed; return the new ones in the order of slots."""
        count = len(adapters)
        copied, staying = set(stacked), set(adapters)
        slots = [adapter if adapter in staying else None for adapter in stacked]
        slots += [None] * (count - len(slots))
        added = [adapter for adapter in adapters if adapter not in copied]
        moved = [adapter for adapter in reversed(slots[count:]) if adapter is not None]
        fillers = iter([*added, *moved])
        arranged: list[AdapterModule] = []
        for slot in range(count):
            adapter = slots[slot]
            if adapter is None:
                adapter = next(fillers)
                if count > self._capacity:
                    self._grow(capacity, adapter)
                for name, tensor in adapter.named_parameters():
                    self._tensors[name][slot].copy_(tensor)
            arranged.append(adapter)
        self._adapters = [weakref.ref(adapter) for adapter in arranged]
        self._expose(count)
        return arranged

    def _grow(self, capacity: int, example: AdapterModule) -> None:
        for name, tensor in example.named_parameters():
            larger = _empty_slots(tensor.detach(), capacity)
            if self._capacity:
                larger[: self._capacity] = self._tensors[name]
            self._tensors[name] = larger
        self._capacity = capacity

    def _expose(self, count: int) -> None:
        """Give the module the first `count` slots as its parameters."""
        for path, tensor in self._tensors.items():
            owner, _, name = path.rpartition(".")
            setattr(self.module.get_submodule(owner), name, nn.Parameter(tensor[:count], requires_grad=False))


def _empty_slots(tensor: Tensor, capacity: int) -> Tensor:
    """Empty (capacity, *shape), transposed for weights of more outputs than inputs: the product is twice as fast."""
    if tensor.ndim == 2 and tensor.shape[0] > tensor.shape[1]:
        return tensor.new_empty((capacity, tensor.shape[1], tensor.shape[0])).transpose(1, 2)
    return tensor.new_empty((capacity, *tensor.shape))
