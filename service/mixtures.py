"""Mixtures of adapters that requests name, and that are not stored.

A mixture is mixed once for all concurrent requests that name it. The engine's adapter cache keeps its tensors. This
module only keeps its identity, and mixes it again after that cache has evicted it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from registry.adapters.loadable import LoadableAdapter, Tensors
from registry.adapters.weights import size_in_bytes
from registry.cook.mix import PlannedRecipe

REMEMBERED_MIXTURES = 1024
"""Maximum number of mixtures; the least recently used is dropped first."""
MIXING_THREADS = 2
"""Mixtures that are mixed at once; other requests wait."""


@dataclass(frozen=True)
class _Mixed:
    """A mixture that was mixed: its digest and size, and its tensors for the first load."""

    digest: str
    size_bytes: int
    tensors: list[Tensors]

    def adapter(self, planned: PlannedRecipe) -> LoadableAdapter:
        return LoadableAdapter(self.digest, planned.config, partial(self._load, planned), self.size_bytes)

    def _load(self, planned: PlannedRecipe) -> Tensors:
        try:
            return self.tensors.pop()
        except IndexError:
            return planned.mix_tensors()


class Mixtures:
    """The adapters of recipes that are not stored."""

    def __init__(self) -> None:
        self._mixed: OrderedDict[str, Future[_Mixed]] = OrderedDict()
        self._lock = threading.Lock()
        self._mixing = threading.BoundedSemaphore(MIXING_THREADS)

    def adapter(self, planned: PlannedRecipe) -> LoadableAdapter:
        """The soup of a recipe as an adapter, with the digest of its stored form; raises what mixing raises.

        A request that comes while another mixes the same recipe waits for it.
        """
        key = planned.recipe.digest
        with self._lock:
            future = self._mixed.get(key)
            if is_new := future is None:
                future = self._mixed[key] = Future()
            self._mixed.move_to_end(key)
            if len(self._mixed) > REMEMBERED_MIXTURES:
                self._mixed.popitem(last=False)
        if is_new:
            self._mix(planned, future)
        return future.result().adapter(planned)

    def _mix(self, planned: PlannedRecipe, future: Future[_Mixed]) -> None:
        try:
            with self._mixing:
                tensors = planned.mix_tensors()
            future.set_result(_Mixed(planned.digest_of(tensors), size_in_bytes(tensors), [tensors]))
        except BaseException as error:
            with self._lock:
                self._mixed.pop(planned.recipe.digest, None)
            future.set_exception(error)
