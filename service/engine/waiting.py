"""Who waits to start: the prompts of each key and adapter in turn, and how long those without a row have waited.

Also for which request memory is saved (`Saving`): a long text needs more memory at once than ever is free where many
short ones come and go. When it has been refused for long, nobody else takes memory until it has its own.

Of the scheduler, under the engine's lock. Knows no tensors.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Container, Iterable

from service.engine.request import GenerateRequest
from service.engine.shares import Rows
from service.engine.steps import Sequence, Turn, Work

PATIENCE = 16
"""Steps after which an adapter that got nothing takes a row, memory, or its room in the bank from one that has."""
PATIENCE_OF_KEYS = 4
"""Steps after which a key takes one more that has less than its part of the rows; its first it takes after one step."""


class Waiting:
    """Requests with sequences to generate, by key and adapter, and the steps that those without a row waited."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[Turn, deque[Work]] = OrderedDict()
        self._waited: dict[Turn, int] = {}
        self._rows = Rows((), (), 1)

    def works(self) -> list[Work]:
        """Every request of which something waits to generate."""
        return [work for queue in self._prompts.values() for work in queue]

    def add(self, work: Work) -> None:
        """A new request waits behind those of its key and adapter."""
        self._prompts.setdefault(work.turn, deque()).append(work)

    def again(self, work: Work) -> None:
        """A sequence of a request starts again: it waits before the others of its adapter."""
        queue = self._prompts.setdefault(work.turn, deque())
        if work not in queue:
            queue.appendleft(work)

    def remove(self, work: Work) -> None:
        """Nothing of a request waits, if anything did."""
        queue = self._prompts.get(work.turn)
        if queue is not None and work in queue:
            queue.remove(work)
            if not queue:
                del self._prompts[work.turn]

    def firsts(self, base_id: str, *, only: Work | None, besides: Container[Sequence]) -> list[Sequence]:
        """The next sequence of each key and adapter of a base model, in their turns.

        Those of keys with less than their part of the rows first, and of them those with fewest; then those that waited
        long. Of `only` one request, where there is one.
        """

        def place(turn: Turn) -> tuple[float, bool]:
            below = self._rows.below(turn[2])
            return self._rows.of(turn[2]) if below else math.inf, not self.long(turn)

        turns = sorted((turn for turn in self._prompts if turn[0] == base_id), key=place)
        firsts = (self._first([one for one in self._prompts[turn] if only in (None, one)], besides) for turn in turns)
        return [one for one in firsts if one is not None]

    def _first(self, works: Iterable[Work], besides: Container[Sequence]) -> Sequence | None:
        """The first of them to start; choices wait for the keys and values of one that has begun."""
        for work in works:
            begun = any(one.done < one.prompt - 1 for one in work.running)
            if work.waiting and not begun and work.waiting[0] not in besides:
                return work.waiting[0]
        return None

    def of_one_key(self, running: Iterable[Sequence], texts: Collection[Work]) -> bool:
        """Whether all work is prompts and streams of one namespace and one base model."""
        works = self.works() + [one.work for one in running]
        owners = {(work.key[0], work.request.namespace) for work in works if isinstance(work.request, GenerateRequest)}
        scores = texts or any(not isinstance(work.request, GenerateRequest) for work in works)
        return not scores and len(owners) == 1 and not any(owner is None for _, owner in owners)

    def had_turn(self, turn: Turn) -> None:
        """A key's adapter is the last in turn now."""
        self._prompts.move_to_end(turn)

    # --- how long -------------------------------------------------------------------------------

    def see(self, rows: Rows) -> None:
        """Who has which rows now."""
        self._rows = rows

    def long(self, turn: Turn) -> bool:
        """Whether a key's adapter has waited long enough to take from others."""
        patience = PATIENCE
        if self._rows.below(turn[2]):
            patience = PATIENCE_OF_KEYS if self._rows.of(turn[2]) else 1
        return self._waited.get(turn, 0) >= patience

    def any_long(self, base_id: str) -> bool:
        """Whether one of a base model's has."""
        return any(turn[0] == base_id and self.long(turn) for turn in self._waited)

    def started(self, turn: Turn) -> None:
        """A key's adapter has got something: it waits anew."""
        self._waited.pop(turn, None)

    def count(self, base_id: str, *, served: Iterable[Turn], texts: Iterable[Turn]) -> None:
        """A step of a base model is made: those that wait have waited for it.

        Not those that are `served`, unless it is with less than their key's part.
        """
        content = {turn for turn in served if not self._rows.below(turn[2])}
        waiting = dict.fromkeys([*self._prompts, *texts])
        for turn in [turn for turn in self._waited if turn in content or turn not in waiting]:
            del self._waited[turn]
        for turn in [turn for turn in waiting if turn[0] == base_id and turn not in content]:
            self._waited[turn] = self._waited.get(turn, 0) + 1


class Saving:
    """Refusals by request, and the `one` request that is saved for, if any."""

    def __init__(self) -> None:
        self._refused: dict[Work, int] = {}
        self.one: Work | None = None

    def refused(self, work: Work, *, waited: bool) -> None:
        """There was no memory for a request in this step; `waited` says that it has waited long already."""
        self._refused[work] = self._refused.get(work, PATIENCE if waited else 0) + 1
        if self.one is None and self._refused[work] > PATIENCE:
            self.one = work

    def allows(self, work: Work) -> bool:
        """Whether a request may take memory now."""
        return self.one is None or self.one is work

    def takes(self, work: Work) -> bool:
        """Whether it was saved for so long that a request takes memory from those that came after it."""
        return self.one is work and self._refused[work] > 2 * PATIENCE

    def pause(self) -> None:
        """It cannot start now, so that nobody is to wait for it; its next refusal counts on."""
        self.one = None

    def done(self, work: Work) -> None:
        """A request has got memory, or ended."""
        self._refused.pop(work, None)
        if self.one is work:
            self.one = None
