"""What is in memory beside what requests use now: rows of sequences that are gone, kept texts, spare rows, stacks.

Used by the engine thread, which tells what is alive. All of it stays within the limits that what is used has: spare
rows take what sequences and kept texts leave of the keys and values, stacks what base models and adapters leave.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Set

from service.engine.adapter_cache import AdapterCache
from service.engine.base_cache import BaseCache
from service.engine.kv_budget import KVBudget
from service.engine.prefix_cache import PrefixCache
from service.engine.runner import Runner


class Evictor:
    """Lets runners and the bank forget.

    `guard` guards the `kept` texts; `bytes_of` a base model's id are those of one position of keys and values.
    """

    def __init__(
        self,
        space: KVBudget,
        kept: PrefixCache,
        bank: AdapterCache,
        residence: BaseCache[Runner],
        guard: threading.Condition,
        bytes_of: Callable[[str], int],
    ) -> None:
        self._space = space
        self._kept = kept
        self._bank = bank
        self._residence = residence
        self._guard = guard
        self._bytes_of = bytes_of

    def watch(self, runner: Runner) -> None:
        """A base model was loaded: what its runner holds is bounded from here on. Called by the loading thread."""
        base_id = runner.base.entry.id
        runner.may_spare(lambda positions: self._may_spare(positions * self._bytes_of(base_id)))
        runner.batched.stack_budget = lambda needed: self._room_for_stacks(runner, needed)

    def tidy(self, alive: Mapping[str, Iterable[object]]) -> None:
        """Give up the rows of all but these sequences, by base model; what is kept of those that ended stays."""
        self._keep_and_drop()
        for base_id in self._residence.held:
            self._residence.peek(base_id).retain(alive.get(base_id, ()))
        if not self._may_spare(0):
            for runner in self._runners():
                runner.give_up_spare()

    def _keep_and_drop(self) -> None:
        """Let the runners keep and drop what the scheduler has."""
        with self._guard:
            fresh, gone = self._kept.changes()
        for text in gone:
            if text.scope[0] in self._residence.held:
                self._residence.peek(text.scope[0]).drop(text)
        for text in fresh:
            source, text.source = text.source, None
            if not self._residence.peek(text.scope[0]).keep(text, source, text.positions):
                with self._guard:
                    self._kept.drop(text)

    def forget(self, base_id: str) -> None:
        """A base model is dropped, and with it all that is its own."""
        self._bank.forget(base_id)
        with self._guard:
            self._kept.forget(base_id)

    def trim(self, wanted: Set[str], running: Set[str]) -> None:
        """Let go of adapters beyond what the bases leave, of stacked copies first."""
        left = self._residence.left
        if left is not None and self._bank.bytes + self.stacked > left:
            self._forget_stacks(self._runners())
        self._bank.trim(self._residence.held, left, wanted, running)

    def room_for_adapters(self, size: int, base_id: str, held: int) -> int:
        """As `BaseCache.room_for_adapters`; stacked copies go where they leave no room for what comes."""
        found = self._residence.room_for_adapters(size, base_id, held)
        if self._residence.left is not None and held + size + self.stacked > found:
            self._forget_stacks(self._runners())
        return found

    @property
    def adapter_bytes(self) -> int:
        """Bytes that adapters may take together now."""
        left = self._residence.left
        return self._bank.capacity if left is None else min(self._bank.capacity, left)

    @property
    def stacked(self) -> int:
        """Bytes of stacked copies."""
        return sum(runner.batched.bytes for runner in self._runners())

    def _forget_stacks(self, runners: Iterable[Runner]) -> None:
        for runner in runners:
            runner.batched.clear_stacks()

    def _runners(self) -> list[Runner]:
        return [self._residence.peek(base_id) for base_id in self._residence.held]

    def _may_spare(self, more: int) -> bool:
        """Whether spare rows may take so many bytes more than they do."""
        if self._space.limit is None:
            return True
        spare = sum(runner.spare_positions * self._bytes_of(runner.base.entry.id) for runner in self._runners())
        return self._space.bytes + spare + more <= self._space.limit

    def _room_for_stacks(self, runner: Runner, needed: int) -> int:
        """Bytes that the stacks of a base model may take; those of others go where it would not get the `needed` ones.

        All together take at most as much as adapters may, and with them no more than base models leave.
        """
        held, left = self._bank.bytes, self._residence.left
        most = max(self._bank.capacity, held)
        if left is not None:
            most = min(most, left - held)
        others = [one for one in self._runners() if one is not runner]
        if sum(one.batched.bytes for one in others) + needed > most:
            self._forget_stacks(others)
        return most - sum(one.batched.bytes for one in others)
