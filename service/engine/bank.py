"""Adapters held ready on a base model's device, by digest; least recently used ones leave when memory is short.

Those of a base model that is dropped leave with it. Used by the engine thread only, so it needs no lock. A load that
fails is an error of the requests that wanted that adapter: nothing is kept of it, the next request tries again, and
nobody ever gets the base model instead.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from typing import Any

from registry.adapters import AdapterModule, from_tensors
from registry.adapters.loadable import LoadableAdapter
from registry.base_model import LoadedBase
from registry.errors import SoupError, Unavailable


class Bank:
    """At most `capacity` bytes of adapters; one that is larger alone is held until the next comes.

    `room(size, base id, bytes held)` is asked before an adapter is held: how many bytes all may take (it may raise).
    """

    def __init__(self, capacity: int, room: Callable[[int, str, int], int] | None = None) -> None:
        self.capacity = capacity
        self._room = room
        self.bytes = 0
        self.loads = 0
        self._held: OrderedDict[tuple[str, str], tuple[AdapterModule, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, base: LoadedBase, handle: LoadableAdapter) -> AdapterModule:
        """The adapter on the base's device, loaded if need be; raises what loading raises, as a SoupError."""
        key = (base.entry.id, handle.digest)
        if key not in self._held:
            self._hold(key, _load(base, handle))
        self._held.move_to_end(key)
        return self._held[key][0]

    def trim(self, bases: Container[str], limit: int | None) -> None:
        """Drop the adapters of all but these `bases`, then the least recently used beyond `limit` bytes."""
        for key in [key for key in self._held if key[0] not in bases]:
            self.bytes -= self._held.pop(key)[1]
        if limit is not None:
            self._make_room(limit)

    def _make_room(self, limit: int) -> None:
        while self._held and self.bytes > limit:
            self.bytes -= self._held.popitem(last=False)[1][1]

    def _hold(self, key: tuple[str, str], module: AdapterModule) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
        allowed = self.capacity if self._room is None else min(self.capacity, self._room(size, key[0], self.bytes))
        self._make_room(allowed - size)
        self._held[key] = (module, size)
        self.bytes += size
        self.loads += 1


def _load(base: LoadedBase, handle: LoadableAdapter) -> AdapterModule:
    try:
        module: Any = from_tensors(handle.config, base.shape, handle.load())
        module = module.to(base.model.device).eval().requires_grad_(False)
    except SoupError:
        raise
    except Exception as error:
        raise Unavailable(f"Adapter {handle.digest} cannot be loaded ({type(error).__name__}).") from error
    loaded: AdapterModule = module
    return loaded
