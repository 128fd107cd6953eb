"""Mixtures of adapters that requests name and nobody stores, by their recipe.

A mixture is mixed once, however many requests name it at a time. Its tensors are kept by the engine's adapter cache;
here is only what identifies it, and it is mixed again where that cache has evicted it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from registry.adapters.loadable import LoadableAdapter, Tensors
from registry.context import BaseModel, Registry
from registry.cook.mix import PlannedRecipe, mix_recipe

REMEMBERED_MIXTURES = 1024
"""Mixtures that are remembered; the least recently used is forgotten first."""


class Mixtures:
    """The adapters of recipes that are not stored."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._adapters: OrderedDict[str, Future[LoadableAdapter]] = OrderedDict()
        self._lock = threading.Lock()

    def adapter(self, base: BaseModel, planned: PlannedRecipe) -> LoadableAdapter:
        """The soup of a recipe as an adapter, with the digest that it would be stored under; raises what mixing does.

        A request that comes while another mixes the same recipe waits for it.
        """
        key = planned.recipe.digest
        with self._lock:
            future = self._adapters.get(key)
            if is_new := future is None:
                future = self._adapters[key] = Future()
            self._adapters.move_to_end(key)
            if len(self._adapters) > REMEMBERED_MIXTURES:
                self._adapters.popitem(last=False)
        if not is_new:
            return future.result()
        try:
            mixed = mix_recipe(self._registry, base, planned, reason="").adapter
        except BaseException as error:
            with self._lock:
                self._adapters.pop(key, None)
            future.set_exception(error)
            raise
        future.set_result(mixed)
        self._remember(key, replace(mixed, load=partial(self._tensors, base, planned)))
        return mixed

    def _remember(self, key: str, adapter: LoadableAdapter) -> None:
        """Keep an adapter without its tensors, which those that waited for it still have."""
        remembered: Future[LoadableAdapter] = Future()
        remembered.set_result(adapter)
        with self._lock:
            self._adapters[key] = remembered

    def _tensors(self, base: BaseModel, planned: PlannedRecipe) -> Tensors:
        return mix_recipe(self._registry, base, planned, reason="").tensors
