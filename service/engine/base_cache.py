"""Cache of the base models in memory: loaded when requested, evicted for others, within one budget.

Used by the engine's thread only, except where it says otherwise. Requests are served in order of arrival. The plan has
as many of their base models as fit in memory with the largest adapter of one of them, oldest request first. A base
model that is not in the plan starts no new sequences, finishes those that generate, and is evicted when its memory is
needed, least recently used first. So none waits forever, and none is evicted while sequences use their keys and values.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from typing import Generic, TypeVar

import torch

from registry.base_model import LoadedBase
from registry.cores import use_cores
from registry.errors import SoupError, Unavailable
from service.engine.text_calls import BaseSource

log = logging.getLogger("soup.engine")


Prepared = TypeVar("Prepared")


class BaseCache(Generic[Prepared]):
    """The loaded base models, each as `prepare` returns it.

    `budget` is bytes of weights, base models and adapters together (None: no limit); adapters get what base models
    leave. `on_loaded` is called by the loading thread, which uses `cores`, when it is done.
    """

    def __init__(
        self,
        source: BaseSource,
        budget: int | None,
        on_loaded: Callable[[], None],
        prepare: Callable[[LoadedBase], Prepared],
        cores: int = 1,
    ) -> None:
        self._cores = cores
        self._prepare = prepare
        self.on_evict: Callable[[str], None] = lambda _base_id: None
        """Called with each base model's id before it is evicted."""
        self._source = source
        self.budget = budget
        self._on_loaded = on_loaded
        self._bases: OrderedDict[str, Prepared] = OrderedDict()
        self._busy: Set[str] = frozenset()
        self._loading: tuple[str, Future[Prepared]] | None = None
        self._loader: threading.Thread | None = None
        self.ready: Set[str] = frozenset()
        """Base models that may start new sequences."""
        self.loaded: tuple[str, ...] = ()
        """Ids of the base models in memory, least recently used first; safe to read from any thread."""
        self.bytes = 0
        """Bytes of the base models that are loaded or being loaded; safe to read from any thread."""
        self.loads = 0

    def check(self, base_id: str) -> None:
        """Raise Unavailable for a base model that alone exceeds the budget. Safe from any thread."""
        size = self._source.size(base_id)
        if self.budget is not None and size > self.budget:
            raise Unavailable(
                f"Base model {base_id!r} takes {size} bytes, and this server may hold {self.budget} bytes of base "
                "models and adapters (SOUP_MEMORY_BYTES)."
            )

    @property
    def available(self) -> int | None:
        """Bytes of the budget that the base models leave; None without a budget."""
        return None if self.budget is None else max(0, self.budget - self.bytes)

    def use(self, base_id: str) -> Prepared:
        """A loaded base model, marked as used."""
        self._bases.move_to_end(base_id)
        self._publish_loaded()
        return self._bases[base_id]

    def peek(self, base_id: str) -> Prepared:
        """A loaded base model, not marked as used."""
        return self._bases[base_id]

    def update(self, requested: Mapping[str, int], busy: Set[str], *, background: bool) -> dict[str, SoupError]:
        """Load and evict for the `requested` base models, those of the oldest requests first; set `ready`.

        `requested` has the bytes that each needs for adapters (`steps.requested_bases`); sequences generate on the
        `busy` ones. At most one load starts, in a thread if `background`. Returns the errors of those that failed to
        load.
        """
        self._busy = busy
        failed = self._take_loaded()
        plan, spare = self._plan({base_id: size for base_id, size in requested.items() if base_id not in failed})
        spare = max([spare, *(requested.get(base_id, 0) for base_id in busy - set(plan))])
        ready = set()
        for base_id in plan:
            is_loaded = base_id in self._bases
            if (is_loaded or self._loading is None) and self._make_room(base_id, spare, protected={*plan, *busy}):
                if not is_loaded:
                    self._start(base_id, background=background)
                    failed |= self._take_loaded()
                ready |= {base_id} & self._bases.keys()
        self.ready = ready
        return failed

    def adapter_budget(self, size: int, base_id: str, cached: int) -> int:
        """Bytes that all adapters may take when one of `size` for `base_id` is added to the `cached` bytes.

        Idle base models other than `base_id` are evicted if it does not fit beside them; raises Unavailable if it
        still does not.
        """
        if self.budget is None:
            return size + cached
        for idle in [loaded for loaded in self._bases if loaded != base_id and loaded not in self._busy]:
            if self.bytes + size > self.budget:
                self._evict([idle])
        if self.bytes + size > self.budget:
            raise Unavailable(
                f"The adapter takes {size} bytes, and base models in use take {self.bytes} of the {self.budget} bytes "
                "this server may hold (SOUP_MEMORY_BYTES)."
            )
        return self.budget - self.bytes

    def wait_for_load(self, seconds: float) -> None:
        """Wait for a load that has started; at shutdown."""
        if self._loader is not None:
            self._loader.join(seconds)

    # --- planning -------------------------------------------------------------------------------

    def _plan(self, requested: Mapping[str, int]) -> tuple[list[str], int]:
        """The base models that fit together, and the bytes to spare beside them for their largest adapter.

        The first is planned for even if its adapter does not fit beside it: its request then fails with that error.
        """
        if self.budget is None:
            return list(requested), 0
        plan: list[str] = []
        total = spare = 0
        for base_id, adapter in requested.items():
            size = self._source.size(base_id)
            needed = size if not plan else total + size + max(spare, adapter)
            if needed <= self.budget:
                plan.append(base_id)
                total, spare = total + size, max(spare, adapter)
        return plan, min(spare, self.budget - total)

    def _make_room(self, base_id: str, spare: int, *, protected: Set[str]) -> bool:
        """Evict until `base_id` and `spare` bytes fit; return False if they do not fit beside the `protected` ones."""
        if self.budget is None:
            return True
        allowed = self.budget - spare - (0 if base_id in self._bases else self._source.size(base_id))
        evicted: list[str] = []
        remaining = self.bytes
        for loaded in self._bases:
            if remaining > allowed and loaded not in protected:
                evicted.append(loaded)
                remaining -= self._source.size(loaded)
        if remaining > allowed:
            return False
        self._evict(evicted)
        return True

    def _evict(self, base_ids: Sequence[str]) -> None:
        """Evict base models; their memory is free when this returns."""
        if not base_ids:
            return
        for base_id in base_ids:
            self.on_evict(base_id)
            del self._bases[base_id]
            self.bytes -= self._source.size(base_id)
            log.info("base model %s is dropped", base_id)
        self._publish_loaded()
        gc.collect()  # a model's modules refer to each other
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        _return_freed_memory()

    def _publish_loaded(self) -> None:
        self.loaded = tuple(self._bases)

    # --- loading --------------------------------------------------------------------------------

    def _start(self, base_id: str, *, background: bool) -> None:
        self.bytes += self._source.size(base_id)
        future: Future[Prepared] = Future()
        self._loading = base_id, future
        if background:
            self._loader = threading.Thread(
                target=self._load_in_thread, args=(base_id, future), name=f"load-{base_id}", daemon=True
            )
            self._loader.start()
        else:
            self._load(base_id, future)

    def _load_in_thread(self, base_id: str, future: Future[Prepared]) -> None:
        use_cores(self._cores)
        self._load(base_id, future)

    def _load(self, base_id: str, future: Future[Prepared]) -> None:
        try:
            prepared = self._prepare(self._source.load(base_id))
            _return_freed_memory()  # what the weights were made of
        except SoupError as error:
            future.set_exception(error)
        except Exception as error:
            log.exception("a base model could not be loaded")
            future.set_exception(Unavailable(f"Base model {base_id!r} cannot be loaded ({type(error).__name__})."))
        else:
            future.set_result(prepared)
        self._on_loaded()

    def _take_loaded(self) -> dict[str, SoupError]:
        """Add the base model that the loader has loaded, if it is done; return its error if it failed."""
        if self._loading is None or not self._loading[1].done():
            return {}
        base_id, future = self._loading
        self._loading = None
        error = future.exception()
        if isinstance(error, SoupError):
            self.bytes -= self._source.size(base_id)
            return {base_id: error}
        self._bases[base_id] = future.result()
        self.loads += 1
        self._publish_loaded()
        return {}


def _return_freed_memory() -> None:
    """Have the C library return freed memory to the system; glibc keeps that of fp32 weights otherwise."""
    with suppress(OSError, AttributeError):  # a C library without malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
