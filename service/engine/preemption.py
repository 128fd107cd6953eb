"""Chooses running sequences to preempt, so that no request waits forever.

Sequences that decode preempt the youngest ones for memory. A request that has waited long preempts sequences for three
resources. For the bytes of its adapter it preempts adapters that have had their turn. For a slot it preempts one
sequence of a key or adapter that runs several. For memory it preempts sequences of the busiest adapter, or all later
ones if memory is reserved for it.

Called by the scheduler, which preempts them: nothing is changed here. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Reversible
from collections.abc import Sequence as ListLike

from service.engine.prefix_cache import PrefixCache
from service.engine.steps import AdapterBudget, Sequence, SequenceGroup
from service.engine.waiting_queue import MemoryReservation, WaitingQueue


class PreemptionPolicy:
    """Chooses sequences to preempt by how long queues have waited, their keys' shares and the reservation."""

    def __init__(self, waiting: WaitingQueue, reservation: MemoryReservation, prefixes: PrefixCache) -> None:
        self._waiting = waiting
        self._reservation = reservation
        self._prefixes = prefixes

    def for_decode(self, running: Reversible[Sequence]) -> Sequence:
        """The youngest sequence with memory."""
        return next(sequence for sequence in reversed(running) if sequence.has_row)

    def for_adapter(self, group: SequenceGroup, running: Iterable[Sequence], limit: int | None) -> list[Sequence]:
        """The sequences to preempt, youngest adapter first, so that a request's adapter fits; empty if it does not yet.

        A preempted prompt is computed again, so a sequence first generates `TURN_TOKENS` tokens; else long prompts of
        two adapters would preempt each other forever. Texts that are scored in chunks are not preempted: they end.
        """
        remaining, preempted = list(running), list[Sequence]()
        for digest in dict.fromkeys(sequence.group.digest for sequence in reversed(remaining)):
            sequences = [sequence for sequence in remaining if sequence.group.digest == digest]
            if digest is not None and all(sequence.has_had_turn for sequence in sequences):
                preempted += sequences
                remaining = [sequence for sequence in remaining if sequence.group.digest != digest]
            if AdapterBudget(limit, remaining).fits(group):
                return preempted
        return []

    def is_starved_of_adapter(self, group: SequenceGroup) -> bool:
        """Return True if a request with an adapter has waited long, and may get memory."""
        has_waited = group.digest is not None and self._waiting.has_waited_long(group.queue_key)
        return has_waited and self._reservation.allows(group)

    def for_slot(self, group: SequenceGroup) -> Sequence | None:
        """A sequence of a key or adapter that runs several, None if there is none."""
        preemptible = self._waiting.shares.preemptible(group)
        return preemptible[-1] if len(preemptible) > 1 else None

    def for_memory(self, sequence: Sequence, running: Reversible[Sequence]) -> ListLike[Sequence]:
        """The sequences to preempt so that another can start; empty if that would not free enough memory.

        For the holder of the reservation they are the later ones, for a request that has waited long those of the
        busiest adapter.
        """
        group = sequence.group
        preemptible: list[Sequence] = []
        if self._reservation.may_preempt(group):
            preemptible = [s for s in reversed(running) if s.has_row and s.id > sequence.id]
        elif self._waiting.has_waited_long(group.queue_key):
            preemptible = self._waiting.shares.preemptible(group)[:0:-1]  # all but the first, last first
        positions = sequence.virtual_tokens + len(sequence.ids)
        return self._prefixes.budget.owners_to_preempt(
            preemptible, group.base_id, positions, freeable=self._prefixes.bytes
        )
