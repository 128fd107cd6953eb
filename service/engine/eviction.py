"""Frees memory that running requests do not use: rows of ended sequences, cached prefixes, spare rows, adapters.

Used by the engine's thread. Everything stays within the limits of what requests use. Spare rows may use memory for keys
and values that sequences and cached prefixes do not need; stacked copies of adapters, memory that base models and
adapters do not need.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Set

from service.engine.adapter_cache import AdapterCache
from service.engine.base_cache import BaseCache
from service.engine.prefix_cache import PrefixCache
from service.engine.runner import Runner


class Evictor:
    """Applies the memory limits to runners and caches.

    `lock` guards `prefixes`.
    """

    def __init__(
        self, prefixes: PrefixCache, adapters: AdapterCache, bases: BaseCache[Runner], lock: threading.Condition
    ) -> None:
        self._kv_budget = prefixes.budget
        self._prefixes = prefixes
        self._adapters = adapters
        self._bases = bases
        self._lock = lock

    def limit_runner(self, runner: Runner) -> None:
        """Apply the limits to the runner of a base model that was loaded. Called by the loading thread."""
        base_id = runner.base.entry.id
        runner.kv_cache.may_spare = lambda positions: self._may_spare(
            positions * self._kv_budget.bytes_per_position(base_id)
        )
        runner.batched.stack_budget = lambda needed: self._stack_budget(runner, needed)

    def free_unused(self, running: Mapping[str, Iterable[object]]) -> None:
        """Free all rows but those of the `running` sequences, by base model; first cache prefixes of ended ones."""
        self._sync_prefixes()
        for base_id in self._bases.loaded:
            self._bases.peek(base_id).retain(running.get(base_id, ()))
        if not self._may_spare(0):
            for runner in self._runners():
                runner.kv_cache.free_spare()

    def _sync_prefixes(self) -> None:
        """Let the runners copy the prefixes that were added to the cache, and free those that were evicted."""
        with self._lock:
            added, evicted = self._prefixes.take_changes()
        for prefix in evicted:
            if prefix.scope[0] in self._bases.loaded:
                self._bases.peek(prefix.scope[0]).free_prefix(prefix)
        for prefix in added:
            source, prefix.source = prefix.source, None
            if not self._bases.peek(prefix.scope[0]).copy_prefix(prefix, source, prefix.positions):
                with self._lock:
                    self._prefixes.evict(prefix)

    def evict_base(self, base_id: str) -> None:
        """Evict the adapters and prefixes of a base model that is evicted."""
        self._adapters.evict_base(base_id)
        with self._lock:
            self._prefixes.evict_base(base_id)

    def evict_adapters(self, requested: Set[str], running: Set[str]) -> None:
        """Evict adapters that exceed what the base models leave, their stacked copies first."""
        available = self._bases.available
        if available is not None and self._adapters.bytes + self.stacked_bytes > available:
            _free_stacks(self._runners())
        self._adapters.evict(
            self._bases.loaded, available, ready_bases=self._bases.ready, requested=requested, pinned=running
        )

    def adapter_budget(self, size: int, base_id: str, cached: int) -> int:
        """See `BaseCache.adapter_budget`; stacked copies are freed if they do not fit beside a new adapter."""
        budget = self._bases.adapter_budget(size, base_id, cached)
        if self._bases.available is not None and cached + size + self.stacked_bytes > budget:
            _free_stacks(self._runners())
        return budget

    @property
    def adapter_bytes(self) -> int:
        """Bytes that adapters may take together now."""
        available = self._bases.available
        return self._adapters.capacity if available is None else min(self._adapters.capacity, available)

    @property
    def stacked_bytes(self) -> int:
        """Bytes of stacked copies of adapters."""
        return sum(runner.batched.bytes for runner in self._runners())

    def _runners(self) -> list[Runner]:
        return [self._bases.peek(base_id) for base_id in self._bases.loaded]

    def _may_spare(self, more: int) -> bool:
        """Return True if spare rows may take `more` bytes than they do."""
        if self._kv_budget.limit is None:
            return True
        spare = sum(
            runner.kv_cache.spare_positions * self._kv_budget.bytes_per_position(runner.base.entry.id)
            for runner in self._runners()
        )
        return self._kv_budget.bytes + spare + more <= self._kv_budget.limit

    def _stack_budget(self, runner: Runner, needed: int) -> int:
        """Bytes that the stacks of a runner may take; frees those of others if it could not get the `needed` ones.

        Stacks take at most as much as the adapter cache may, and together with it no more than base models leave.
        """
        limit = max(self._adapters.capacity, self._adapters.bytes)
        if self._bases.available is not None:
            limit = min(limit, self._bases.available - self._adapters.bytes)
        other_runners = [neighbour for neighbour in self._runners() if neighbour is not runner]
        if sum(neighbour.batched.bytes for neighbour in other_runners) + needed > limit:
            _free_stacks(other_runners)
        return limit - sum(neighbour.batched.bytes for neighbour in other_runners)


def _free_stacks(runners: Iterable[Runner]) -> None:
    for runner in runners:
        runner.batched.clear_stacks()
