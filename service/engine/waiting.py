"""Who waits to start: the prompts of each adapter in turn, and how long an adapter without a row has waited.

Of the scheduler, under the engine's lock. Knows no tensors.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Container, Iterable

from service.engine.request import GenerateRequest
from service.engine.steps import Key, Sequence, Work

PATIENCE = 16
"""Steps after which an adapter that got nothing takes a row, memory, or its room in the bank from one that has."""


class Waiting:
    """Requests with sequences that are to generate, by adapter; and the steps that adapters without a row waited."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[Key, deque[Work]] = OrderedDict()
        self._waited: dict[Key, int] = {}

    def add(self, work: Work) -> None:
        """A new request waits behind those of its adapter."""
        self._prompts.setdefault(work.key, deque()).append(work)

    def again(self, work: Work) -> None:
        """A sequence of a request starts again: it waits before the others of its adapter."""
        queue = self._prompts.setdefault(work.key, deque())
        if work not in queue:
            queue.appendleft(work)

    def remove(self, work: Work) -> None:
        """Nothing of a request waits, if anything did."""
        queue = self._prompts.get(work.key)
        if queue is not None and work in queue:
            queue.remove(work)
            if not queue:
                del self._prompts[work.key]

    def firsts(self, base_id: str, *, only: Work | None, besides: Container[Sequence]) -> list[Sequence]:
        """The next sequence of each adapter of a base model, in their turns, those that waited long first.

        Of `only` one request, where there is one.
        """
        keys = sorted((key for key in self._prompts if key[0] == base_id), key=lambda key: not self.long(key))
        firsts = (self._first([one for one in self._prompts[key] if only in (None, one)], besides) for key in keys)
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
        works = [work for queue in self._prompts.values() for work in queue] + [one.work for one in running]
        owners = {(work.key[0], work.request.namespace) for work in works if isinstance(work.request, GenerateRequest)}
        scores = texts or any(not isinstance(work.request, GenerateRequest) for work in works)
        return not scores and len(owners) == 1 and not any(owner is None for _, owner in owners)

    def had_turn(self, key: Key) -> None:
        """An adapter is the last in turn now."""
        self._prompts.move_to_end(key)

    # --- how long -------------------------------------------------------------------------------

    def long(self, key: Key) -> bool:
        """Whether an adapter has waited long enough to take from others."""
        return self._waited.get(key, 0) >= PATIENCE

    def started(self, key: Key) -> None:
        """An adapter has got something: it waits anew."""
        self._waited.pop(key, None)

    def count(self, base_id: str, *, served: Container[Key], texts: Iterable[Key]) -> None:
        """A step of a base model is made: those that wait and are not `served` have waited for it."""
        waiting = dict.fromkeys([*self._prompts, *texts])
        for key in [key for key in self._waited if key in served or key not in waiting]:
            del self._waited[key]
        for key in [key for key in waiting if key[0] == base_id and key not in served]:
            self._waited[key] = self._waited.get(key, 0) + 1
