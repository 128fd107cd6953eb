"""LRU cache of adapters on their base models' devices, by base id and adapter digest.

Used by the engine's thread only, so it needs no lock. Adapters of an evicted base model are evicted with it. If an
adapter fails to load, the requests that name it fail: nothing is cached, and the next request tries again. The base
model never replaces it. A started engine loads adapters in background threads, while other requests go on. Adapters
that are loaded ahead, for requests that have not started, take at most as many bytes as the cache again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Container
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from registry.adapters import from_tensors
from registry.adapters.batched import ReadyAdapter
from registry.adapters.loadable import LoadableAdapter
from registry.base_model import LoadedBase
from registry.cores import use_cores
from registry.errors import InvalidParameter, SoupError, Unavailable
from service.engine.runner import Runner

LOADER_THREADS = 2


@dataclass(frozen=True)
class _Load:
    """A load in the background, and the bytes that the adapter takes."""

    adapter: Future[ReadyAdapter]
    bytes: int


class AdapterCache:
    """At most `capacity` bytes of adapters, exceeded only by the adapters of a single pass.

    `budget(size, base_id, cached_bytes)` is called before an adapter is added, and returns the bytes that all adapters
    may take, or raises.
    """

    def __init__(self, capacity: int, budget: Callable[[int, str, int], int] | None = None) -> None:
        self.capacity = capacity
        self._budget = budget
        self.bytes = 0
        self.loads = 0
        self.evictions = 0
        self.hits = 0
        """Requests whose adapter was cached when they started; the executor counts them."""
        self._cached: OrderedDict[tuple[str, str], ReadyAdapter] = OrderedDict()
        self._loading: dict[tuple[str, str], _Load] = {}
        self._loading_bytes = 0
        self._pool: ThreadPoolExecutor | None = None
        self._on_loaded: Callable[[], None] = lambda: None

    def check(self, digest: str, size: int) -> None:
        """Raise InvalidParameter for an adapter that alone exceeds the capacity. Safe from any thread."""
        if size > self.capacity:
            raise InvalidParameter(
                f"Adapter {digest} takes {size} bytes, more than the server's memory for adapters of "
                f"{self.capacity} bytes (SOUP_ADAPTER_BANK_BYTES): use a smaller adapter, or ask the operator for "
                "more memory.",
                param="model",
            )

    def __len__(self) -> int:
        return len(self._cached)

    def start_background_loads(self, on_loaded: Callable[[], None]) -> None:
        """Load adapters in threads from now on; they call `on_loaded` after each."""
        self._pool, self._on_loaded = ThreadPoolExecutor(LOADER_THREADS, "load-adapter", use_cores, (1,)), on_loaded

    def close(self) -> None:
        """Cancel loads that have not started; does not wait for the others."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def prefetch(self, runner: Runner, handle: LoadableAdapter) -> bool:
        """Start loading an adapter in the background; return True if `get` can be called now.

        Always True without background loads: `get` then loads. Starts no load while those that are loading, or
        loaded and not used yet, leave no room for it in the capacity.
        """
        key = (runner.base.entry.id, handle.digest)
        if key in self._cached or self._pool is None:
            return True
        if key not in self._loading:
            if self._loading and self._loading_bytes + handle.size_bytes > self.capacity:
                return False
            self._loading[key] = _Load(self._pool.submit(_load, runner.base, handle), handle.size_bytes)
            self._loading_bytes += handle.size_bytes
            self._loading[key].adapter.add_done_callback(lambda _future: self._on_loaded())
        return self._loading[key].adapter.done()

    def is_cached(self, runner: Runner, handle: LoadableAdapter) -> bool:
        """Return True if the adapter is on the base model's device."""
        return (runner.base.entry.id, handle.digest) in self._cached

    def get(
        self, runner: Runner, handle: LoadableAdapter, *, pinned: Callable[[], Container[str | None]] = tuple
    ) -> ReadyAdapter:
        """Return the adapter on the base model's device, loaded if necessary; raise a SoupError if that fails.

        `pinned` returns the digests of the same pass and of running sequences, which are not evicted for it.
        """
        key = (runner.base.entry.id, handle.digest)
        if key not in self._cached:
            adapter = self._take_load(key).result() if key in self._loading else _load(runner.base, handle)
            runner.batched.add_hooks(adapter)
            self._add(key, adapter, pinned())
        self._cached.move_to_end(key)
        return self._cached[key]

    def evict_base(self, base_id: str) -> None:
        """Evict the adapters of a base model, and drop those being loaded: they refer to its modules."""
        for key in [key for key in self._loading if key[0] == base_id]:
            self._take_load(key).cancel()
        for key in [key for key in self._cached if key[0] == base_id]:
            self._evict(key)

    def evict(
        self,
        loaded_bases: Container[str],
        limit: int | None,
        *,
        ready_bases: Container[str],
        requested: Container[str],
        pinned: Collection[str] = (),
    ) -> None:
        """Evict adapters of all but the `loaded_bases`, then the least recently used ones over `limit` and capacity.

        Drops loads of digests that are no longer `requested`, and those of all but the `ready_bases`: they would keep
        others from being loaded, perhaps those that the base models wait for. The `pinned` digests are of running
        sequences.
        """
        for key in [key for key in self._loading if key[0] not in ready_bases or key[1] not in requested]:
            self._take_load(key).cancel()
        for key in [key for key in self._cached if key[0] not in loaded_bases]:
            self._evict(key)
        self._evict_to(self.capacity if limit is None else min(limit, self.capacity), pinned)

    def _take_load(self, key: tuple[str, str]) -> Future[ReadyAdapter]:
        load = self._loading.pop(key)
        self._loading_bytes -= load.bytes
        return load.adapter

    def _evict_to(self, limit: int, pinned: Container[str | None]) -> None:
        for key in [key for key in self._cached if key[1] not in pinned]:
            if self.bytes <= limit:
                break
            self._evict(key)

    def _evict(self, key: tuple[str, str]) -> None:
        self.bytes -= self._cached.pop(key).bytes
        self.evictions += 1

    def _add(self, key: tuple[str, str], adapter: ReadyAdapter, pinned: Container[str | None]) -> None:
        size = adapter.bytes
        self.check(key[1], size)
        limit = self.capacity if self._budget is None else min(self.capacity, self._budget(size, key[0], self.bytes))
        self._evict_to(limit - size, pinned)
        self._cached[key] = adapter
        self.bytes += size
        self.loads += 1


def _load(base: LoadedBase, handle: LoadableAdapter) -> ReadyAdapter:
    try:
        module = from_tensors(handle.config, base.shape, handle.load())
        return ReadyAdapter(module.to(base.model.device).eval().requires_grad_(False), base.model)
    except SoupError:
        raise
    except Exception as error:
        raise Unavailable(f"Adapter {handle.digest} cannot be loaded ({type(error).__name__}).") from error
