"""Which base models are in memory: loaded when they are wanted, dropped when others are, within one budget.

Used by the engine thread only, except where it says otherwise. Requests are served in the order in which they came:
of the bases that they want, as many as fit together with the largest adapter that runs on one of them are planned
for, oldest request first. What is not planned for starts no new rows, ends those that generate, and is dropped when
its place is needed, least recently used first. So no base waits for ever, and none is dropped under the rows that have
their caches.
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
from typing import Generic, Protocol, TypeVar

import torch

from registry.base_model import BaseText, LoadedBase
from registry.cores import borrow_spare
from registry.errors import SoupError, Unavailable

log = logging.getLogger(__name__)


class BaseSource(Protocol):
    """Where base models come from, by id; every method raises SoupErrors, and any thread may call them."""

    def text(self, base_id: str) -> BaseText:
        """Tokenizer and shape, which stay in memory."""

    def size(self, base_id: str) -> int:
        """Bytes of the weights, known before they are loaded."""

    def load(self, base_id: str) -> LoadedBase:
        """The base model, newly loaded: nobody else has it."""


Held = TypeVar("Held")


class BaseCache(Generic[Held]):
    """The base models held. `budget` is in bytes of weights, bases and adapters together; None is no limit.

    Bases come first: adapters get what the bases leave of it. `loaded` is called by the loading thread when it is
    done; what is held of a base is what `prepare` makes of it.
    """

    def __init__(
        self, source: BaseSource, budget: int | None, loaded: Callable[[], None], prepare: Callable[[LoadedBase], Held]
    ) -> None:
        self._prepare = prepare
        self.forget: Callable[[str], None] = lambda _base_id: None
        """Told of each base that is dropped, before its memory is."""
        self._source = source
        self._sizes: dict[str, int] = {}
        self.budget = budget
        self._loaded = loaded
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._busy: Set[str] = frozenset()
        self._loading: tuple[str, Future[Held]] | None = None
        self._loader: threading.Thread | None = None
        self.ready: Set[str] = frozenset()
        """Bases that may start new rows."""
        self.held: tuple[str, ...] = ()
        """Ids of the bases in memory, least recently used first; any thread may read it."""
        self.bytes = 0
        """Bytes of the bases that are held or being loaded; any thread may read it."""
        self.loads = 0

    def check(self, base_id: str) -> None:
        """From any thread: raises Unavailable where the base alone exceeds the budget."""
        size = self._size(base_id)
        if self.budget is not None and size > self.budget:
            raise Unavailable(
                f"Base model {base_id!r} takes {size} bytes, and this server may hold {self.budget} bytes of base "
                "models and adapters (SOUP_MEMORY_BYTES)."
            )

    @property
    def left(self) -> int | None:
        """Bytes of the budget that the bases leave; None where there is none."""
        return None if self.budget is None else max(0, self.budget - self.bytes)

    def base(self, base_id: str) -> Held:
        """What is held of a base, which counts as its use."""
        self._held.move_to_end(base_id)
        self._changed()
        return self._held[base_id]

    def peek(self, base_id: str) -> Held:
        """What is held of a base, which is no use of it."""
        return self._held[base_id]

    def arrange(self, wanted: Mapping[str, int], busy: Set[str], *, background: bool) -> dict[str, SoupError]:
        """Plan for the bases `wanted`, those of the oldest requests first, while rows generate on the `busy` ones.

        With each wanted base come the bytes of the largest adapter its requests bring. Sets `ready`; starts at most
        one load, in a thread where `background` says so. Gives the bases that could not be loaded, with the reason.
        """
        self._busy = busy
        failed = self._take_loaded()
        plan, spare = self._plan({base_id: size for base_id, size in wanted.items() if base_id not in failed})
        spare = max([spare, *(wanted.get(base_id, 0) for base_id in busy - set(plan))])
        ready = set()
        for base_id in plan:
            held = base_id in self._held
            if (held or self._loading is None) and self._make_room(base_id, spare, keep={*plan, *busy}):
                if not held:
                    self._start(base_id, background=background)
                    failed |= self._take_loaded()
                ready |= {base_id} & self._held.keys()
        self.ready = ready
        return failed

    def room_for_adapters(self, size: int, base_id: str, held: int) -> int:
        """Bytes that adapters may take in all when one of `size` for `base_id` comes to the `held` ones.

        Idle bases other than `base_id` go where it does not fit beside them; raises Unavailable where even then.
        """
        if self.budget is None:
            return size + held
        for other in [one for one in self._held if one != base_id and one not in self._busy]:
            if self.bytes + size > self.budget:
                self._drop([other])
        if self.bytes + size > self.budget:
            raise Unavailable(
                f"The adapter takes {size} bytes, and base models in use take {self.bytes} of the {self.budget} bytes "
                "this server may hold (SOUP_MEMORY_BYTES)."
            )
        return self.budget - self.bytes

    def wait(self, seconds: float) -> None:
        """Wait for a load that is under way; at shutdown."""
        if self._loader is not None:
            self._loader.join(seconds)

    # --- planning -------------------------------------------------------------------------------

    def _plan(self, wanted: Mapping[str, int]) -> tuple[list[str], int]:
        """The bases that fit together, and the bytes to spare beside them for the largest adapter of theirs.

        The first is planned for even where its adapter does not fit beside it: then its request is told so.
        """
        if self.budget is None:
            return list(wanted), 0
        plan: list[str] = []
        total = spare = 0
        for base_id, adapter in wanted.items():
            size = self._size(base_id)
            needed = size if not plan else total + size + max(spare, adapter)
            if needed <= self.budget:
                plan.append(base_id)
                total, spare = total + size, max(spare, adapter)
        return plan, min(spare, self.budget - total)

    def _make_room(self, base_id: str, spare: int, *, keep: Set[str]) -> bool:
        """Drop bases until this one is there with `spare` bytes beside it; False where those to `keep` leave none."""
        if self.budget is None:
            return True
        allowed = self.budget - spare - (0 if base_id in self._held else self._size(base_id))
        going: list[str] = []
        left = self.bytes
        for other in self._held:
            if left > allowed and other not in keep:
                going.append(other)
                left -= self._size(other)
        if left > allowed:
            return False
        self._drop(going)
        return True

    def _drop(self, base_ids: Sequence[str]) -> None:
        """Let go of bases; their memory is free when this returns."""
        if not base_ids:
            return
        for base_id in base_ids:
            self.forget(base_id)
            del self._held[base_id]
            self.bytes -= self._size(base_id)
            log.info("base model %s is dropped", base_id)
        self._changed()
        gc.collect()  # a model's modules refer to each other
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        _return_freed_memory()

    def _size(self, base_id: str) -> int:
        """Bytes of a base; raises, if at all, when it is asked for the first time."""
        if base_id not in self._sizes:
            self._sizes[base_id] = self._source.size(base_id)
        return self._sizes[base_id]

    def _changed(self) -> None:
        self.held = tuple(self._held)

    # --- loading --------------------------------------------------------------------------------

    def _start(self, base_id: str, *, background: bool) -> None:
        self.bytes += self._size(base_id)
        future: Future[Held] = Future()
        self._loading = base_id, future
        if background:
            self._loader = threading.Thread(
                target=self._load, args=(base_id, future), name=f"load-{base_id}", daemon=True
            )
            self._loader.start()
        else:
            self._load(base_id, future)

    def _load(self, base_id: str, future: Future[Held]) -> None:
        try:
            with borrow_spare():
                held = self._prepare(self._source.load(base_id))
            _return_freed_memory()  # what the weights were made of
        except SoupError as error:
            future.set_exception(error)
        except Exception as error:
            log.exception("a base model could not be loaded")
            future.set_exception(Unavailable(f"Base model {base_id!r} cannot be loaded ({type(error).__name__})."))
        else:
            future.set_result(held)
        self._loaded()

    def _take_loaded(self) -> dict[str, SoupError]:
        """Hold what the loader has loaded, if it is done; gives what it failed on."""
        if self._loading is None or not self._loading[1].done():
            return {}
        base_id, future = self._loading
        self._loading = None
        error = future.exception()
        if isinstance(error, SoupError):
            self.bytes -= self._size(base_id)
            return {base_id: error}
        self._held[base_id] = future.result()
        self.loads += 1
        self._changed()
        return {}


def _return_freed_memory() -> None:
    """Have the C library give freed memory back to the system where it keeps it, as glibc does with weights in fp32."""
    with suppress(OSError, AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)
