"""Schedules steps: which tokens of which sequences the next forward pass computes. No tensors, models or threads.

Called by the engine only, under its lock; all states of requests change here. A step is a pass of one base model. It
has the newest token of each decoding sequence and, within a budget, tokens of prompts and texts to score; long ones are
split into chunks. Base models, keys and adapters take turns, so that none waits until others have finished.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Container, Iterable
from collections.abc import Sequence as ListLike

from service.engine.fairness import AdmissionControl, SequenceShares
from service.engine.kv_budget import KVBudget
from service.engine.preemption import PreemptionPolicy
from service.engine.prefix_cache import PrefixCache
from service.engine.request import GenerateRequest, Request, State
from service.engine.step_times import StepTimes
from service.engine.steps import AdapterBudget, CachedPrefix, Segment, Sequence, SequenceGroup, Step, StepBuilder
from service.engine.waiting_queue import MemoryReservation, ScoringQueue, WaitingQueue


class Scheduler:
    """Holds the requests in the engine and schedules their sequences in turns.

    `admission` limits the requests held, `max_running` the sequences that generate together, `max_step_tokens` the
    prefill tokens of a step but for a text that runs alone. `can_chunk(base_id)`: may a text be computed in chunks?
    """

    def __init__(
        self,
        *,
        admission: AdmissionControl,
        max_step_tokens: int,
        max_running: int,
        prefixes: PrefixCache | None = None,
        can_chunk: Callable[[str], bool] = lambda _base_id: True,
    ) -> None:
        self._admission = admission
        self.max_step_tokens = max_step_tokens
        self.max_running = max_running
        self.step_times = StepTimes()
        self.prefixes = PrefixCache(KVBudget(None)) if prefixes is None else prefixes
        self._kv_budget = self.prefixes.budget
        self._can_chunk = can_chunk
        self._ids = itertools.count()
        self._waiting = WaitingQueue()
        self._reservation = MemoryReservation()
        self._preemption = PreemptionPolicy(self._waiting, self._reservation, self.prefixes)
        self._scoring = ScoringQueue()
        self._running: dict[Sequence, None] = {}  # generations and texts in chunks, in the order of their start
        self._base_turns: deque[str] = deque()
        self._scores_first: set[str] = set()  # base models whose next step considers texts before prompts
        self._groups: dict[SequenceGroup, None] = {}  # ordered
        self._adapter_budget = AdapterBudget(None, ())
        self._step = StepBuilder()
        self._preempted: set[Sequence] = set()  # while the current step is scheduled
        self._prefetch_adapter: Callable[[SequenceGroup], bool] = lambda _group: True

    def add(self, requests: ListLike[Request], retry_after: Callable[[int], int] = lambda _: 1) -> list[SequenceGroup]:
        """Admit all of these requests of one key, or raise Busy and admit none.

        `retry_after` returns the seconds that a number of tokens takes.
        """
        self._admission.check(self._groups, requests[0].owner if requests else None, retry_after)
        return [self._admit(request) for request in requests]

    def _admit(self, request: Request) -> SequenceGroup:
        group = SequenceGroup.of(request, self._ids)
        self._groups[group] = None
        self.step_times.recent_keys.note_request(group.owner)
        if request.base_id not in self._base_turns:
            self._base_turns.append(request.base_id)
        if isinstance(request, GenerateRequest):
            self._waiting.add(group)
        else:
            self._scoring.add(group)
        return group

    @property
    def depth(self) -> int:
        """The number of requests that wait or run."""
        return len(self._groups)

    @property
    def generating(self) -> int:
        """The number of sequences that generate, or whose prompt is computed for it."""
        return sum(sequence.is_generation for sequence in self._running)

    @property
    def waiting(self) -> int:
        """The number of requests of which nothing has run."""
        return sum(group.state is State.WAITING for group in self._groups)

    def groups(self) -> list[SequenceGroup]:
        """All requests that wait or run, oldest first."""
        return list(self._groups)

    def sequences_with_rows(self) -> dict[str, list[Sequence]]:
        """The sequences whose keys and values are kept, by base model."""
        sequences: dict[str, list[Sequence]] = {}
        for sequence in self._running:
            if sequence.has_row:
                sequences.setdefault(sequence.group.base_id, []).append(sequence)
        return sequences

    def next_step(
        self,
        ready: Container[str] | None = None,
        *,
        adapter_bytes: int | None = None,
        prefetch_adapter: Callable[[SequenceGroup], bool] = lambda _group: True,
    ) -> Step | None:
        """Schedule the next step; None if there is nothing to run.

        Sequences start on the `ready` base models (None: on any); running ones continue on all. Adapters of running
        sequences take at most `adapter_bytes` together (None: no limit), except for a single one. `prefetch_adapter`
        starts to load the adapter of a request; until it returns True the request waits, and others go on.
        """
        self._prefetch_adapter = prefetch_adapter
        self._adapter_budget = AdapterBudget(adapter_bytes, self._running)
        self._step = StepBuilder()
        self._preempted.clear()
        self.prefixes.unpin_except(())
        startable = [base_id for base_id in self._base_turns if ready is None or base_id in ready]
        holder = self._reservation.holder
        if holder is not None and (holder.base_id not in startable or not prefetch_adapter(holder)):
            self._reservation.suspend()
        self._update_shares()
        if adapter_bytes is not None:
            self._make_room_for_adapters(startable)
        for base_id in list(self._base_turns):
            self._base_turns.rotate(-1)
            step = self._build_step(base_id, can_start=base_id in startable)
            if step.segments:
                return Step(base_id, step.segments)
        return None

    def _build_step(self, base_id: str, *, can_start: bool) -> StepBuilder:
        """Schedule the segments of one base model; new sequences only if it `can_start` them."""
        step = self._step = StepBuilder()
        step.decodes = self._schedule_decodes(base_id)
        other_bases = {sequence.group.base_id for sequence in self._running if sequence.is_decoding} - {base_id}
        step.others_decoding = bool(other_bases)
        limit = self.max_step_tokens
        if step.decodes:
            same_namespaces = self._waiting.has_same_namespaces(self._running, self._scoring.groups())
            step.token_budget = self.step_times.beside_decodes(base_id, limit, same_namespaces=same_namespaces)
        else:
            step.token_budget = self.step_times.between_decodes(base_id, other_bases, limit)
        schedule = [self._schedule_prompts, self._schedule_scores]
        for schedule_prefills in reversed(schedule) if base_id in self._scores_first else schedule:
            schedule_prefills(base_id, step, can_start)
        if step.prefills and step.prefills[0].sequence.is_generation:
            self._scores_first.add(base_id)
        elif step.prefills:
            self._scores_first.discard(base_id)
        return step

    def _schedule_decodes(self, base_id: str) -> list[Segment]:
        """The newest token of each decoding sequence; preempts the youngest sequences if memory is short."""
        for sequence in self._decoding(base_id):
            while sequence in self._running and not self.prefixes.reserve_row(sequence):
                self._preempt(self._preemption.for_decode(self._running))
        return [Segment(sequence, sequence.computed, 1, "next") for sequence in self._decoding(base_id)]

    def _decoding(self, base_id: str) -> list[Sequence]:
        return [s for s in self._running if s.is_decoding and s.group.base_id == base_id]

    def _schedule_prompts(self, base_id: str, step: StepBuilder, can_start: bool) -> None:
        """Continue prompts that have started, then start others; in the other order if one has waited long."""
        started = [s for s in self._running if s.is_generation and not s.is_decoding and s.group.base_id == base_id]
        if can_start and self._waiting.any_waited_long(base_id) and not self._adapter_budget.is_closed:
            self._start_prompts(base_id, step)
        for sequence in started:
            if sequence in self._running and step.token_budget > 0:
                self._add_chunk(sequence, step)
        if can_start:
            self._start_prompts(base_id, step)
        self._waiting.count_step(base_id, self._running, self._scoring.groups())

    def _update_shares(self) -> None:
        self._waiting.shares = SequenceShares(self._running, self._waiting.groups(), self.max_running)

    def _start_prompts(self, base_id: str, step: StepBuilder) -> None:
        """Start waiting prompts, one of each key and adapter in turn."""
        while step.token_budget > 0 and self._free_slot(base_id):
            sequence = next((s for s in self._next_sequences(base_id) if self._has_room_for_adapter(s.group)), None)
            if sequence is None:
                break
            self._copy_source(sequence)  # marks it as used, so that it is evicted last to make room for the sequence
            if not self._reserve_or_preempt(sequence):
                break
            self._waiting.move_to_end(sequence.group.queue_key)
            self._start(sequence)
            self._add_chunk(sequence, step)

    def _next_sequences(self, base_id: str) -> list[Sequence]:
        return self._waiting.next_sequences(base_id, only=self._reservation.holder, excluded=self._preempted)

    def _make_room_for_adapters(self, base_ids: Iterable[str]) -> None:
        """Keep room for the adapters of requests that have waited long, and preempt sequences for one that has none.

        Until it has room no request with an adapter starts, so that the wait ends; requests without one do.
        """
        groups = self._starved_groups(base_ids)
        group = next((group for group in groups if not self._adapter_budget.fits(group)), None)
        if group is None:
            for group in groups:
                self._adapter_budget.try_add(group)
            return
        limit = self._adapter_budget.limit
        for sequence in self._preemption.for_adapter(group, self._running, limit):
            self._preempt(sequence)
        self._adapter_budget = AdapterBudget(limit, self._running)
        if not self._adapter_budget.try_add(group):
            self._adapter_budget.is_closed = True

    def _starved_groups(self, base_ids: Iterable[str]) -> list[SequenceGroup]:
        """The requests of these base models that could start and have waited long, with adapters that are loaded."""
        prompts = [sequence.group for base_id in base_ids for sequence in self._next_sequences(base_id)]
        texts = [group for group in self._scoring.groups() if group.base_id in base_ids]
        starved = filter(self._preemption.is_starved_of_adapter, prompts + texts)
        return list(filter(self._prefetch_adapter, starved))

    def _has_room_for_adapter(self, group: SequenceGroup) -> bool:
        """Return True if a request's adapter is loaded and within the budget."""
        return self._prefetch_adapter(group) and self._adapter_budget.fits(group)

    def _free_slot(self, base_id: str) -> bool:
        """Return True if fewer than `max_running` sequences generate, preempting one for a request that waited long."""
        if self.generating < self.max_running:
            return True
        starved = [s.group for s in self._next_sequences(base_id) if self._waiting.has_waited_long(s.group.queue_key)]
        group = next(filter(self._prefetch_adapter, starved), None)
        sequence = None if group is None else self._preemption.for_slot(group)
        if sequence is not None:
            self._preempt(sequence)
        return sequence is not None

    def _reserve_or_preempt(self, sequence: Sequence) -> bool:
        """Reserve memory for a sequence that is to start, preempting others; return False if there is none."""
        group = sequence.group
        if not self._reservation.allows(group):
            return False
        if self.prefixes.reserve_row(sequence):
            return True
        waited_long = self._waiting.has_waited_long(group.queue_key)
        for running in self._preemption.for_memory(sequence, self._running):
            self._preempt(running)
        is_reserved = self.prefixes.reserve_row(sequence)
        if not is_reserved and (waited_long or not sequence.is_generation):
            self._reservation.note_refusal(group, waited_long=waited_long)
        return is_reserved

    def _add_chunk(self, sequence: Sequence, step: StepBuilder) -> None:
        """Add as many tokens of a sequence to the step as its budget allows."""
        source = None
        if sequence.is_generation and sequence.computed == 0:
            source, sequence.computed = self._copy_source(sequence)
            if isinstance(source, CachedPrefix):
                self.prefixes.pin(source)
        step.add(sequence.next_segment(step.token_budget, copy_from=source))

    def _copy_source(self, sequence: Sequence) -> tuple[Sequence | CachedPrefix | None, int]:
        """The choice or cached prefix that a new sequence copies keys and values from, and of how many tokens."""
        for choice in sequence.group.running:
            if choice.computed >= sequence.prompt_length > 1:
                return choice, sequence.prompt_length - 1
        return self.prefixes.find(sequence)

    def _schedule_scores(self, base_id: str, step: StepBuilder, can_start: bool) -> None:
        """Continue texts that have started, then start those of each key in turn, texts of one length together."""
        for sequence in list(self._running):
            if not sequence.is_generation and sequence.group.base_id == base_id and step.token_budget > 0:
                self._add_chunk(sequence, step)
        if not can_start:
            return
        for group in self._scoring.in_turn(base_id):
            if step.token_budget < 1 or not self._has_room_for_adapter(group):
                continue
            scheduled = len(step.prefills)
            while group.waiting and self._start_text(group.waiting[0], step):
                self._waiting.reset_wait(group.queue_key)
            if len(step.prefills) > scheduled:
                self._scoring.note_turn(group)
        self._scoring.drop_started()

    def _start_text(self, sequence: Sequence, step: StepBuilder) -> bool:
        """Add a text to the step, whole or in chunks; return False if it must wait."""
        if sequence in self._preempted:
            return False
        group, length = sequence.group, len(sequence.ids)
        fits = length <= step.token_budget
        if not fits and step.prefills:
            return False
        has_prefix = sequence.virtual_tokens > 0
        in_chunks = (has_prefix or not (fits or step.delays_nobody)) and self._can_chunk(group.base_id)
        if in_chunks and self._reserve_or_preempt(sequence):
            self._start(sequence)
            self._add_chunk(sequence, step)
            return True
        if has_prefix or (in_chunks and self._kv_budget.fits(group.base_id, length)):
            return False  # it starts in chunks once there is memory for it
        group.waiting.popleft()
        group.running[sequence] = None
        group.state = State.RUNNING
        self._adapter_budget.try_add(group)
        self._reservation.release(group)
        step.add(Segment(sequence, 0, length, "score", keeps_kv=False))
        return True

    def _start(self, sequence: Sequence) -> None:
        group = sequence.group
        group.waiting.remove(sequence)
        group.running[sequence] = None
        self._running[sequence] = None
        sequence.started_with = len(sequence.ids)
        self._adapter_budget.try_add(group)
        self._update_shares()
        self._waiting.reset_wait(group.queue_key)
        self._reservation.release(group)
        group.state = State.RUNNING
        if sequence.is_generation and not group.waiting:
            self._waiting.remove(group)

    def _preempt(self, sequence: Sequence) -> None:
        """Release a sequence's memory and let it wait; it will start again with the tokens it has."""
        group = sequence.group
        self._preempted.add(sequence)
        self._step.remove(sequence)
        self.prefixes.unpin_except(segment.copy_from for segment in self._step.prefills)
        self._remove(sequence)
        sequence.computed = 0
        group.waiting.appendleft(sequence)
        if sequence.is_generation:
            self._waiting.requeue(group)
        else:
            self._scoring.requeue(group)
        self._update_shares()

    def _remove(self, sequence: Sequence, *, cache_prefix: bool = False) -> None:
        """Remove a running sequence and release its memory."""
        sequence.group.running.pop(sequence, None)
        self._running.pop(sequence, None)
        if sequence.has_row:
            self._kv_budget.release(sequence)
            sequence.has_row = False
            if cache_prefix:
                self.prefixes.add(sequence)

    def mark_computed(self, step: Step) -> None:
        """Record that the keys and values of a step's segments are there."""
        for segment in step.segments:
            if segment.keeps_kv and segment.sequence in self._running:
                segment.sequence.computed = segment.end

    def finish(self, sequences: Iterable[Sequence]) -> list[SequenceGroup]:
        """Remove finished sequences, and return the requests that are finished by it. Ignores those that have ended."""
        finished = []
        for sequence in sequences:
            group = sequence.group
            if group.state.is_final:
                continue
            self._remove(sequence, cache_prefix=True)
            group.ticket.rows_done += 1
            if not group.running and not group.waiting:
                self._end(group, State.FINISHED)
                finished.append(group)
        return finished

    def fail(self, groups: Iterable[SequenceGroup], error: BaseException) -> list[SequenceGroup]:
        """End these requests with `error`, and return those that had not ended before."""
        failed = [group for group in dict.fromkeys(groups) if not group.state.is_final]
        for group in failed:
            group.error = error
            self._end(group, State.FAILED)
        return failed

    def drop_cancelled(self) -> list[SequenceGroup]:
        """End the requests whose ticket was cancelled, and return them."""
        cancelled = [group for group in self._groups if group.ticket.cancelled()]
        for group in cancelled:
            self._end(group, State.CANCELLED)
        return cancelled

    def _end(self, group: SequenceGroup, state: State) -> None:
        group.state = state
        for sequence in list(group.running):
            self._remove(sequence, cache_prefix=state is State.CANCELLED)  # those of failed requests may be damaged
        self._waiting.remove(group)
        self._reservation.release(group)
        self._scoring.remove(group)
        group.waiting.clear()
        del self._groups[group]
        if not any(remaining.base_id == group.base_id for remaining in self._groups):
            self._base_turns.remove(group.base_id)
