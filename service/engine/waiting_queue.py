"""Requests that wait to start: to generate, in one queue for each key and adapter with the steps it has waited, or to
be scored.

`MemoryReservation` keeps long texts from starving: one needs more memory at once than is ever free while many short
ones come and go. When it has been refused often, no other request gets memory until it has started.

Used by the scheduler, under the engine's lock. Knows no tensors.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Container, Iterable

from service.engine.fairness import SequenceShares
from service.engine.request import GenerateRequest
from service.engine.steps import Owner, QueueKey, Sequence, SequenceGroup

PATIENCE_STEPS = 16
"""Steps after which a waiting adapter may preempt running sequences, for a row, memory, or its place among adapters."""
KEY_PATIENCE_STEPS = 4
"""Steps after which a key below its share preempts for one more sequence; for its first one it waits a single step."""


class WaitingQueue:
    """Generation requests with waiting sequences, by base model, adapter and key, and the steps that each waited."""

    def __init__(self) -> None:
        self._queues: OrderedDict[QueueKey, deque[SequenceGroup]] = OrderedDict()
        self._waited: dict[QueueKey, int] = {}
        self.shares = SequenceShares((), (), 1)
        """The keys' shares of the running sequences."""

    def groups(self) -> list[SequenceGroup]:
        """All requests with a sequence that waits to generate."""
        return [group for queue in self._queues.values() for group in queue]

    def add(self, group: SequenceGroup) -> None:
        """Append a new request to the queue of its key and adapter."""
        self._queues.setdefault(group.queue_key, deque()).append(group)

    def requeue(self, group: SequenceGroup) -> None:
        """Put a request with a preempted sequence in front of its queue."""
        queue = self._queues.setdefault(group.queue_key, deque())
        if group not in queue:
            queue.appendleft(group)

    def remove(self, group: SequenceGroup) -> None:
        """Remove a request, if it waits."""
        queue = self._queues.get(group.queue_key)
        if queue is not None and group in queue:
            queue.remove(group)
            if not queue:
                del self._queues[group.queue_key]

    def next_sequences(
        self, base_id: str, *, only: SequenceGroup | None, excluded: Container[Sequence]
    ) -> list[Sequence]:
        """The next sequence of each queue of a base model, in the order in which they should start.

        Keys below their share come first, of these the ones that run fewest; then queues that have waited long; then
        the queue that was served longest ago. With `only`, the sequences of that request alone.
        """
        keys = sorted((key for key in self._queues if key[0] == base_id), key=self._priority)
        candidates = (
            self._next_of([group for group in self._queues[key] if only in (None, group)], excluded) for key in keys
        )
        return [sequence for sequence in candidates if sequence is not None]

    def _priority(self, key: QueueKey) -> tuple[float, bool]:
        owner = key[2]
        running = self.shares.running(owner) if self.shares.is_below(owner) else math.inf
        return running, not self.has_waited_long(key)

    def _next_of(self, groups: Iterable[SequenceGroup], excluded: Container[Sequence]) -> Sequence | None:
        """The first sequence that may start; choices wait until the prompt of a running one is computed, to copy it."""
        for group in groups:
            in_prefill = any(sequence.computed < sequence.prompt_length - 1 for sequence in group.running)
            if group.waiting and not in_prefill and group.waiting[0] not in excluded:
                return group.waiting[0]
        return None

    def has_same_namespaces(self, running: Iterable[Sequence], scoring: Collection[SequenceGroup]) -> bool:
        """Return True if all requests are generations of one base model, for keys that see the same namespaces."""
        groups = self.groups() + [sequence.group for sequence in running]
        generations = [group.request for group in groups if isinstance(group.request, GenerateRequest)]
        namespaces = {(request.base_id, request.namespace) for request in generations}
        has_scores = scoring or len(generations) < len(groups)
        return not has_scores and len(namespaces) == 1 and all(namespace is not None for _, namespace in namespaces)

    def move_to_end(self, key: QueueKey) -> None:
        """Serve a queue after all others."""
        self._queues.move_to_end(key)

    # --- waiting time ---------------------------------------------------------------------------

    def has_waited_long(self, key: QueueKey) -> bool:
        """Return True if a queue has waited long enough to preempt others."""
        patience = PATIENCE_STEPS
        if self.shares.is_below(key[2]):
            patience = KEY_PATIENCE_STEPS if self.shares.running(key[2]) else 1
        return self._waited.get(key, 0) >= patience

    def any_waited_long(self, base_id: str) -> bool:
        """Return True if a queue of a base model has waited long enough to preempt others."""
        return any(key[0] == base_id and self.has_waited_long(key) for key in self._waited)

    def reset_wait(self, key: QueueKey) -> None:
        """Count a queue's steps from zero: one of its sequences has started."""
        self._waited.pop(key, None)

    def count_step(self, base_id: str, running: Iterable[Sequence], scoring: Iterable[SequenceGroup]) -> None:
        """Count a step of a base model for each queue that waits, also those of texts to score.

        A queue with running sequences does not wait, unless its key is below its share.
        """
        served = {sequence.group.queue_key for sequence in running}
        satisfied = {key for key in served if not self.shares.is_below(key[2])}
        waiting = dict.fromkeys([*self._queues, *(group.queue_key for group in scoring)])
        for key in [key for key in self._waited if key in satisfied or key not in waiting]:
            del self._waited[key]
        for key in [key for key in waiting if key[0] == base_id and key not in satisfied]:
            self._waited[key] = self._waited.get(key, 0) + 1


class ScoringQueue:
    """Requests with texts that wait to be scored, whose keys take turns."""

    def __init__(self) -> None:
        self._groups: deque[SequenceGroup] = deque()
        self._turns: dict[Owner, int] = {}
        """The number of each key's last turn."""
        self._turn = 0

    def groups(self) -> list[SequenceGroup]:
        """All requests with a text that waits."""
        return list(self._groups)

    def add(self, group: SequenceGroup) -> None:
        """Append a new request."""
        self._groups.append(group)

    def requeue(self, group: SequenceGroup) -> None:
        """Put a request with a preempted text in front."""
        if group not in self._groups:
            self._groups.appendleft(group)

    def remove(self, group: SequenceGroup) -> None:
        """Remove a request, if it waits."""
        if group in self._groups:
            self._groups.remove(group)

    def in_turn(self, base_id: str) -> list[SequenceGroup]:
        """The requests of a base model, those first whose key had its last turn longest ago."""
        groups = [group for group in self._groups if group.base_id == base_id]
        owners = {group.owner for group in groups}
        self._turns = {owner: turn for owner, turn in self._turns.items() if owner in owners}
        return sorted(groups, key=lambda group: self._turns.get(group.owner, 0))

    def note_turn(self, group: SequenceGroup) -> None:
        """Record a turn of a request's key, and put the request behind all others."""
        self._turn += 1
        self._turns[group.owner] = self._turn
        self._groups.remove(group)
        self._groups.append(group)

    def drop_started(self) -> None:
        """Remove the requests whose texts have all started."""
        self._groups = deque(group for group in self._groups if group.waiting)


class MemoryReservation:
    """Counts how often each request was refused memory, and reserves all free memory for one that was refused long."""

    def __init__(self) -> None:
        self._refusals: dict[SequenceGroup, int] = {}
        self.holder: SequenceGroup | None = None
        """The request that memory is reserved for."""

    def note_refusal(self, group: SequenceGroup, *, waited_long: bool) -> None:
        """Record that there was no memory for a request in this step."""
        self._refusals[group] = self._refusals.get(group, PATIENCE_STEPS if waited_long else 0) + 1
        if self.holder is None and self._refusals[group] > PATIENCE_STEPS:
            self.holder = group

    def allows(self, group: SequenceGroup) -> bool:
        """Return True if a request may take memory now."""
        return self.holder is None or self.holder is group

    def may_preempt(self, group: SequenceGroup) -> bool:
        """Return True if a request has been the holder so long that it takes memory from all later requests."""
        return self.holder is group and self._refusals[group] > 2 * PATIENCE_STEPS

    def suspend(self) -> None:
        """Let others take memory while the holder cannot start; its refusals still count."""
        self.holder = None

    def release(self, group: SequenceGroup) -> None:
        """Forget a request that has got memory or ended."""
        self._refusals.pop(group, None)
        if self.holder is group:
            self.holder = None
