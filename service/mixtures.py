"""Mixtures of adapters that requests name, and that are not stored.

A mixture is mixed once for all concurrent requests that name it. The engine's adapter cache keeps its tensors. This
module keeps its identity, and the tensors of the last few mixtures until the engine loads them. Others are mixed again
when the engine loads them.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial

from registry.adapters.loadable import LoadableAdapter, Tensors
from registry.cook.mix import PlannedRecipe
from registry.recent import Recent

REMEMBERED_MIXTURES = 1024
"""Maximum number of mixtures; the least recently used is dropped first."""
UNLOADED_MIXTURES = 4
"""Maximum number of mixtures whose tensors are kept for their first load; the oldest are dropped first. They remain if
a request waits, was refused, or needs no load."""
MIXING_THREADS = 2
"""Mixtures that are mixed at once; other requests wait."""


class Mixtures:
    """The adapters of recipes that are not stored."""

    def __init__(self) -> None:
        # both by the recipe's digest; the first has the digests of the adapters
        self._mixed = Recent[Future[str]](REMEMBERED_MIXTURES)
        self._unloaded = Recent[Tensors](UNLOADED_MIXTURES)
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
                future = Future()
                self._mixed.put(key, future)
        if is_new:
            self._mix(planned, future)
        return LoadableAdapter(future.result(), planned.config, partial(self._load, planned))

    def _mix(self, planned: PlannedRecipe, future: Future[str]) -> None:
        try:
            with self._mixing:
                tensors = planned.mix_tensors()
            digest = planned.digest_of(tensors)
            self._unloaded.put(planned.recipe.digest, tensors)
            future.set_result(digest)
        except BaseException as error:
            self._mixed.pop(planned.recipe.digest)
            future.set_exception(error)

    def _load(self, planned: PlannedRecipe) -> Tensors:
        tensors = self._unloaded.pop(planned.recipe.digest)
        return planned.mix_tensors() if tensors is None else tensors
