"""Adapters held ready on their base models' devices, by digest; least recently used ones leave when memory is short.

Those of a base model that is dropped leave with it. Asked by the engine thread only, so it needs no lock. A load that
fails is an error of the requests that wanted that adapter: nothing is kept of it, the next request tries again, and
nobody ever gets the base model instead. A load waits for the disk, so it has threads of its own where the engine has
one: others go on meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Container
from concurrent.futures import Future, ThreadPoolExecutor

from registry.adapters import AdapterModule, from_tensors
from registry.adapters.batched import ReadyAdapter
from registry.adapters.loadable import LoadableAdapter
from registry.base_model import LoadedBase
from registry.errors import InvalidParameter, SoupError, Unavailable
from registry.spec import BaseShape
from service.engine.runner import Runner

LOADER_THREADS = 2
"""Adapters that are loaded at a time."""


class AdapterCache:
    """At most `capacity` bytes of adapters, but for those of one pass; one that is larger alone is refused.

    `room(size, base id, bytes held)` is asked before an adapter is held: how many bytes all may take (it may raise).
    """

    def __init__(self, capacity: int, room: Callable[[int, str, int], int] | None = None) -> None:
        self.capacity = capacity
        self._room = room
        self.bytes = 0
        self.loads = 0
        self.evictions = 0
        """Adapters dropped: loads are those held and those dropped."""
        self.hits = 0
        """Requests that began with their adapter held; whoever starts them counts them."""
        self._held: OrderedDict[tuple[str, str], ReadyAdapter] = OrderedDict()
        self._loading: dict[tuple[str, str], Future[AdapterModule]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._told: Callable[[], None] = lambda: None

    def check(self, digest: str, size: int) -> None:
        """From any thread: raises InvalidParameter for an adapter that alone is larger than the bank."""
        if size > self.capacity:
            raise InvalidParameter(
                f"Adapter {digest} takes {size} bytes, and this server may hold {self.capacity} bytes of adapters "
                "(SOUP_ADAPTER_BANK_BYTES): ask for a smaller one, or its operator for more room.",
                param="model",
            )

    def __len__(self) -> int:
        return len(self._held)

    def load_beside(self, told: Callable[[], None]) -> None:
        """From now on load in threads of the bank's own; `told` is called by them when an adapter is there."""
        self._pool, self._told = ThreadPoolExecutor(LOADER_THREADS, "load-adapter"), told

    def close(self) -> None:
        """Start no more loads; those that run are not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def ready(self, runner: Runner, handle: LoadableAdapter) -> bool:
        """Whether `get` would not have to wait. Where it would, the adapter is being loaded from here on, once."""
        key = (runner.base.entry.id, handle.digest)
        if key in self._held or self._pool is None:
            return True
        if key not in self._loading:
            self._loading[key] = self._pool.submit(_load, runner.base, handle)
            self._loading[key].add_done_callback(lambda _done: self._told())
        return self._loading[key].done()

    def holds(self, runner: Runner, handle: LoadableAdapter) -> bool:
        """Whether the adapter is on the base's device now."""
        return (runner.base.entry.id, handle.digest) in self._held

    def get(self, runner: Runner, handle: LoadableAdapter, *, pinned: Container[str] = ()) -> ReadyAdapter:
        """The adapter on the base's device, loaded if need be; raises what loading raises, as a SoupError.

        The `pinned` digests are those of the pass that it is for: they stay, also where there is no room for all.
        """
        key = (runner.base.entry.id, handle.digest)
        if key not in self._held:
            load = self._loading.pop(key, None)
            module = _load(runner.base, handle) if load is None else load.result()
            self._hold(key, runner.batched.prepare(module), pinned)
        self._held.move_to_end(key)
        return self._held[key]

    def forget(self, base_id: str) -> None:
        """Drop the adapters of a base model: they refer to its modules."""
        for key in [key for key in self._held if key[0] == base_id]:
            self._drop(key)

    def trim(
        self, bases: Container[str], limit: int | None, wanted: Container[str], pinned: Collection[str] = ()
    ) -> None:
        """Drop the adapters of all but these `bases`, then the least recently used ones beyond `limit` and capacity.

        What was loaded for requests that are gone is dropped too: nobody wants its digest any more. The `pinned` ones
        have sequences that run.
        """
        for key in [key for key in self._loading if key[0] not in bases or key[1] not in wanted]:
            self._loading.pop(key).cancel()
        for key in [key for key in self._held if key[0] not in bases]:
            self._drop(key)
        if limit is not None:
            self._make_room(limit, pinned)
        self._make_room(self.capacity, pinned)

    def _make_room(self, limit: int, pinned: Container[str] = ()) -> None:
        for key in [key for key in self._held if key[1] not in pinned]:
            if self.bytes <= limit:
                break
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        self.bytes -= self._held.pop(key).bytes
        self.evictions += 1

    def _hold(self, key: tuple[str, str], adapter: ReadyAdapter, pinned: Container[str]) -> None:
        size = adapter.bytes
        self.check(key[1], size)
        allowed = self.capacity if self._room is None else min(self.capacity, self._room(size, key[0], self.bytes))
        self._make_room(allowed - size, pinned)
        self._held[key] = adapter
        self.bytes += size
        self.loads += 1


def smallest_adapter_bytes(shape: BaseShape) -> int:
    """Bytes that the smallest adapter of a base model takes here: a LoRA of rank 1, or a prefix of one position."""
    values = [inputs + outputs for inputs, outputs in shape.linears.values()]
    if shape.kv is not None:
        heads, size = shape.kv
        values.append(2 * 2 * shape.num_layers * heads * size)  # its tensor, and the keys and values made of it
    return 4 * min(values, default=0)  # held in fp32


def _load(base: LoadedBase, handle: LoadableAdapter) -> AdapterModule:
    try:
        module = from_tensors(handle.config, base.shape, handle.load())
        return module.to(base.model.device).eval().requires_grad_(False)
    except SoupError:
        raise
    except Exception as error:
        raise Unavailable(f"Adapter {handle.digest} cannot be loaded ({type(error).__name__}).") from error
