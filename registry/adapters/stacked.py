"""Several adapters of one form as one module: every parameter has a slot for each, in front of its own dimensions.

What a module computes for (slots, tokens, hidden) with such parameters is what each adapter computes for its own
(tokens, hidden): one product for all of them instead of one for each. Adapters of one form have the same structure,
settings and sizes; LoRAs of different ranks and scales are brought to one form first (`AdapterModule.stackable`).
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence

from torch import Tensor, nn

from registry.adapters.attach import AdapterModule


def form_of(module: AdapterModule) -> Hashable:
    """What two adapters have alike that can be stacked: type, settings and the names and shapes of their tensors."""
    shapes = tuple((name, tuple(tensor.shape)) for name, tensor in module.named_parameters())
    return type(module), module.settings(), shapes, next(module.parameters()).dtype


def roomy(count: int) -> int:
    """Slots for so many adapters and some that may come, so that little is copied for each."""
    return max(2, 1 << (count - 1).bit_length())


class Stack:
    """Adapters of one form, each in a slot. They change places, come and go; the slots in use are the first ones."""

    def __init__(self, example: AdapterModule) -> None:
        self.module = copy.deepcopy(example)
        self._held: list[AdapterModule] = []
        self._room = 0
        self._tensors: dict[str, Tensor] = {}

    @property
    def bytes(self) -> int:
        """Bytes of all slots, free ones included."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    def has_room(self, count: int) -> bool:
        """Whether so many have a slot each without new ones."""
        return count <= self._room

    def arrange(self, wanted: Sequence[AdapterModule], *, room: int | None = None) -> list[int]:
        """Hold exactly these adapters, which are all different; gives the slot of each.

        Where they need new slots there are `room` then, `roomy` by default.

        Only what was not held before is copied, apart from one copy for each slot that is given up in the middle.
        """
        places = {id(module): number for number, module in enumerate(wanted)}
        if [id(module) for module in self._held] != list(places):
            kept: list[AdapterModule | None] = [one if id(one) in places else None for one in self._held]
            there = {id(one) for one in kept if one is not None}
            coming = iter([one for one in wanted if id(one) not in there])
            kept += [None] * (len(wanted) - len(kept))
            last = len(kept)
            slots: list[AdapterModule] = []
            for number in range(len(wanted)):
                one = kept[number]
                if one is None:
                    one = next(coming, None)
                    while one is None:  # fewer than before: the last ones move into the gaps
                        last -= 1
                        one, kept[last] = kept[last], None
                    self._fill(number, one, len(wanted), room)
                slots.append(one)
            self._held = slots
            self._show(len(slots))
        at = {id(one): number for number, one in enumerate(self._held)}
        return [at[id(one)] for one in wanted]

    def _fill(self, slot: int, one: AdapterModule, count: int, room: int | None) -> None:
        if count > self._room:
            self._grow(roomy(count) if room is None else room, one)
        for name, tensor in one.named_parameters():
            self._tensors[name][slot].copy_(tensor)

    def _grow(self, room: int, example: AdapterModule) -> None:
        for name, tensor in example.named_parameters():
            larger = _slots_for(tensor.detach(), room)
            if self._room:
                larger[: self._room] = self._tensors[name]
            self._tensors[name] = larger
        self._room = room

    def _show(self, count: int) -> None:
        """Give the module the first `count` slots as its parameters."""
        for path, tensor in self._tensors.items():
            owner, _, name = path.rpartition(".")
            setattr(self.module.get_submodule(owner), name, nn.Parameter(tensor[:count], requires_grad=False))


def _slots_for(tensor: Tensor, room: int) -> Tensor:
    """Empty (room, *shape). A weight of more outputs than inputs lies transposed: its product is twice as quick so."""
    if tensor.ndim == 2 and tensor.shape[0] > tensor.shape[1]:
        return tensor.new_empty((room, tensor.shape[1], tensor.shape[0])).transpose(1, 2)
    return tensor.new_empty((room, *tensor.shape))
