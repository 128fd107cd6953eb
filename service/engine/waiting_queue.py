"""Requests that wait to start, in one queue for each key and adapter, and how many steps each queue has waited.

`MemoryReservation` keeps long texts from starving: one needs more memory at once than is ever free while many short
ones come and go. When it has been refused often, no other request gets memory until it has started.

Used by the scheduler, under the engine's lock. Knows no tensors.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Container, Iterable

from service.engine.key_quotas import SequenceQuotas
from service.engine.request import GenerateRequest
from service.engine.steps import QueueKey, Sequence, SequenceGroup

PATIENCE_STEPS = 16
"""Steps after which an adapter that got nothing takes a row, memory, or its room in the bank from one that has."""
KEY_PATIENCE_STEPS = 4
"""Steps after which a key takes one more that has less than its part of the rows; its first it takes after one step."""


class WaitingQueue:
    """Requests with sequences to generate, by key and adapter, and the steps that those without a row waited."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[QueueKey, deque[SequenceGroup]] = OrderedDict()
        self._waited: dict[QueueKey, int] = {}
        self._rows = SequenceQuotas((), (), 1)

    def groups(self) -> list[SequenceGroup]:
        """Every request of which something waits to generate."""
        return [group for queue in self._prompts.values() for group in queue]

    def add(self, group: SequenceGroup) -> None:
        """A new request waits behind those of its key and adapter."""
        self._prompts.setdefault(group.turn, deque()).append(group)

    def again(self, group: SequenceGroup) -> None:
        """A sequence of a request starts again: it waits before the others of its adapter."""
        queue = self._prompts.setdefault(group.turn, deque())
        if group not in queue:
            queue.appendleft(group)

    def remove(self, group: SequenceGroup) -> None:
        """Nothing of a request waits, if anything did."""
        queue = self._prompts.get(group.turn)
        if queue is not None and group in queue:
            queue.remove(group)
            if not queue:
                del self._prompts[group.turn]

    def firsts(self, base_id: str, *, only: SequenceGroup | None, besides: Container[Sequence]) -> list[Sequence]:
        """The next sequence of each key and adapter of a base model, in their turns.

        Those of keys with less than their part of the rows first, and of them those with fewest; then those that waited
        long. Of `only` one request, where there is one.
        """

        def place(turn: QueueKey) -> tuple[float, bool]:
            below = self._rows.below(turn[2])
            return self._rows.of(turn[2]) if below else math.inf, not self.long(turn)

        turns = sorted((turn for turn in self._prompts if turn[0] == base_id), key=place)
        firsts = (self._first([one for one in self._prompts[turn] if only in (None, one)], besides) for turn in turns)
        return [one for one in firsts if one is not None]

    def _first(self, groups: Iterable[SequenceGroup], besides: Container[Sequence]) -> Sequence | None:
        """The first of them to start; choices wait for the keys and values of one that has begun."""
        for group in groups:
            begun = any(one.done < one.prompt - 1 for one in group.running)
            if group.waiting and not begun and group.waiting[0] not in besides:
                return group.waiting[0]
        return None

    def of_one_key(self, running: Iterable[Sequence], texts: Collection[SequenceGroup]) -> bool:
        """Whether all work is prompts and streams of one namespace and one base model."""
        groups = self.groups() + [one.group for one in running]
        owners = {
            (group.key[0], group.request.namespace) for group in groups if isinstance(group.request, GenerateRequest)
        }
        scores = texts or any(not isinstance(group.request, GenerateRequest) for group in groups)
        return not scores and len(owners) == 1 and not any(owner is None for _, owner in owners)

    def had_turn(self, turn: QueueKey) -> None:
        """A key's adapter is the last in turn now."""
        self._prompts.move_to_end(turn)

    # --- how long -------------------------------------------------------------------------------

    def see(self, rows: SequenceQuotas) -> None:
        """Who has which rows now."""
        self._rows = rows

    def long(self, turn: QueueKey) -> bool:
        """Whether a key's adapter has waited long enough to take from others."""
        patience = PATIENCE_STEPS
        if self._rows.below(turn[2]):
            patience = KEY_PATIENCE_STEPS if self._rows.of(turn[2]) else 1
        return self._waited.get(turn, 0) >= patience

    def any_long(self, base_id: str) -> bool:
        """Whether one of a base model's has."""
        return any(turn[0] == base_id and self.long(turn) for turn in self._waited)

    def started(self, turn: QueueKey) -> None:
        """A key's adapter has got something: it waits anew."""
        self._waited.pop(turn, None)

    def count(self, base_id: str, *, served: Iterable[QueueKey], texts: Iterable[QueueKey]) -> None:
        """A step of a base model is made: those that wait have waited for it.

        Not those that are `served`, unless it is with less than their key's part.
        """
        content = {turn for turn in served if not self._rows.below(turn[2])}
        waiting = dict.fromkeys([*self._prompts, *texts])
        for turn in [turn for turn in self._waited if turn in content or turn not in waiting]:
            del self._waited[turn]
        for turn in [turn for turn in waiting if turn[0] == base_id and turn not in content]:
            self._waited[turn] = self._waited.get(turn, 0) + 1


class MemoryReservation:
    """Refusals by request, and the `one` request that is saved for, if any."""

    def __init__(self) -> None:
        self._refused: dict[SequenceGroup, int] = {}
        self.one: SequenceGroup | None = None

    def refused(self, group: SequenceGroup, *, waited: bool) -> None:
        """There was no memory for a request in this step; `waited` says that it has waited long already."""
        self._refused[group] = self._refused.get(group, PATIENCE_STEPS if waited else 0) + 1
        if self.one is None and self._refused[group] > PATIENCE_STEPS:
            self.one = group

    def allows(self, group: SequenceGroup) -> bool:
        """Whether a request may take memory now."""
        return self.one is None or self.one is group

    def takes(self, group: SequenceGroup) -> bool:
        """Whether it was saved for so long that a request takes memory from those that came after it."""
        return self.one is group and self._refused[group] > 2 * PATIENCE_STEPS

    def pause(self) -> None:
        """It cannot start now, so that nobody is to wait for it; its next refusal counts on."""
        self.one = None

    def done(self, group: SequenceGroup) -> None:
        """A request has got memory, or ended."""
        self._refused.pop(group, None)
        if self.one is group:
            self.one = None
