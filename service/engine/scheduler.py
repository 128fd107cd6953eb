"""Which tokens run next. Knows requests, sequences and lengths; knows no tensors, no models and no threads.

Called by the engine only, under its lock. Every state transition of a request happens here. A step is one forward pass
of one base model: the newest token of every sequence that generates, and beside them, as many as the pace allows,
tokens of prompts and of texts to score, each with its own adapter or none. Long ones go in pieces, so that streams
keep moving. Base models take turns, and so do keys and adapters: whoever waits behind others is not kept waiting for
their end.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Container, Iterable
from collections.abc import Sequence as Many

from service.engine.key_quotas import AdmissionControl, KeyTurns, SequenceQuotas
from service.engine.kv_budget import KVBudget
from service.engine.prefix_cache import PrefixCache
from service.engine.request import GenerateRequest, Request, State
from service.engine.steps import (
    AdapterBudget,
    CachedPrefix,
    Segment,
    SegmentOutput,
    Sequence,
    SequenceGroup,
    Step,
    StepBuilder,
    new_group,
)
from service.engine.token_budget import TokenBudget
from service.engine.waiting_queue import MemoryReservation, WaitingQueue


class Scheduler:
    """A bounded set of requests, served in turns.

    The `queue` says how much is held, at most `max_rows` sequences generate together, and a step has at most
    `max_step_tokens` tokens beside the newest ones, but for a text that runs alone. `space` tells which sequences have
    room for their keys and values, `kept` what is there of ended ones; `in_pieces` of which base models a text may be
    computed in several steps.
    """

    def __init__(
        self, *, queue: AdmissionControl, max_step_tokens: int, max_rows: int, space: KVBudget | None = None,
        kept: PrefixCache | None = None, in_pieces: Callable[[str], bool] = lambda _base_id: True,
    ) -> None:  # fmt: skip
        self._queue = queue
        self.max_step_tokens = max_step_tokens
        self.max_rows = max_rows
        self.pace = TokenBudget()
        self._space = space or KVBudget(None)
        self.kept = PrefixCache(self._space) if kept is None else kept
        self._in_pieces = in_pieces
        self._ids = itertools.count()
        self._waiting = WaitingQueue()
        self._saving = MemoryReservation()
        self._scores: deque[SequenceGroup] = deque()
        self._text_turns = KeyTurns()
        self._running: dict[Sequence, None] = {}  # those that generate or are in the middle of a text, by admission
        self._turns: deque[str] = deque()  # base models
        self._scores_first: set[str] = set()  # base models where they have the first choice next
        self._live: dict[SequenceGroup, None] = {}  # ordered
        self._claims = AdapterBudget(None, ())
        self._rows = SequenceQuotas((), (), max_rows)
        self._room = StepBuilder()
        self._sent_away: set[Sequence] = set()  # in the making of this step
        self._loaded: Callable[[SequenceGroup], bool] = lambda _work: True

    # --- coming in ------------------------------------------------------------------------------

    def add(
        self, requests: Many[Request], *, retry_after: Callable[[int], int] = lambda _tokens: 1
    ) -> list[SequenceGroup]:
        """Admit all of these requests of one key, or raise Busy and admit none (`AdmissionControl`).

        `retry_after` gives the seconds in which so many tokens are computed.
        """
        self._queue.check(self._live, requests[0].owner if requests else None, retry_after)
        return [self._admit(request) for request in requests]

    def _admit(self, request: Request) -> SequenceGroup:
        group = new_group(request, self._ids)
        self._live[group] = None
        self.pace.company.asked(group.owner)
        if request.base_id not in self._turns:
            self._turns.append(request.base_id)
        if isinstance(request, GenerateRequest):
            self._waiting.add(group)
        else:
            self._scores.append(group)
        return group

    # --- looking --------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Requests held: waiting or running."""
        return len(self._live)

    @property
    def generating(self) -> int:
        """Sequences that generate now, their prompt included."""
        return sum(sequence.generates for sequence in self._running)

    @property
    def waiting(self) -> int:
        """Requests of which nothing has run."""
        return sum(group.state is State.WAITING for group in self._live)

    def live(self) -> list[SequenceGroup]:
        """Every request held, oldest first."""
        return list(self._live)

    def alive(self) -> dict[str, list[Sequence]]:
        """The sequences with a row of memory, by base model."""
        found: dict[str, list[Sequence]] = {}
        for sequence in self._running:
            if sequence.holds:
                found.setdefault(sequence.group.key[0], []).append(sequence)
        return found

    # --- what runs next -------------------------------------------------------------------------

    def next(
        self, ready: Container[str] | None = None, *, adapter_bytes: int | None = None,
        loaded: Callable[[SequenceGroup], bool] = lambda _work: True,
    ) -> Step | None:  # fmt: skip
        """The step whose turn it is, None when there is nothing to run.

        Sequences start on base models that are `ready` (None: on any); those that have started go on. Adapters that run
        together take at most `adapter_bytes` (None: any number), but for one alone. `loaded` is asked of a request
        whose adapter has room: where it is not there yet, the request waits, and others go on.
        """
        self._loaded = loaded
        self._claims = AdapterBudget(adapter_bytes, self._running)
        self._sent_away.clear()
        self.kept.pin_only(())
        saved = self._saving.one
        if saved is not None and not ((ready is None or saved.key[0] in ready) and loaded(saved)):
            self._saving.pause()
        for _ in range(len(self._turns)):
            base_id = self._turns[0]
            self._turns.rotate(-1)
            room = self._room = StepBuilder()
            room.newest = self._newest(base_id)
            others = {one.group.key[0] for one in self._running if one.newest} - {base_id}
            room.streams_elsewhere = bool(others)
            room.left = self.pace.between(base_id, others, self.max_step_tokens)
            if room.newest:
                one_key = self._waiting.of_one_key(self._running, self._scores)
                room.left = self.pace.beside(base_id, self.max_step_tokens, among_themselves=one_key)
            starts = ready is None or base_id in ready
            self._see_rows()
            kinds = [self._of_prompts, self._of_scores]
            for fill in reversed(kinds) if base_id in self._scores_first else kinds:
                fill(base_id, room, starts)
            if room.beside:
                had = self._scores_first.add if room.beside[0].sequence.generates else self._scores_first.discard
                had(base_id)  # whoever had the first choice has it last
            if room.segments:
                return Step(base_id, room.segments)
        return None

    def _newest(self, base_id: str) -> list[Segment]:
        """The newest token of every sequence that generates; the youngest start again later where memory is short."""
        for sequence in [one for one in self._running if one.newest and one.group.key[0] == base_id]:
            while sequence in self._running and not self._reserve(sequence, len(sequence.ids)):
                self._preempt(next(one for one in reversed(self._running) if one.holds))
        return [
            Segment(one, one.done, 1, "next") for one in self._running if one.newest and one.group.key[0] == base_id
        ]

    def _of_prompts(self, base_id: str, room: StepBuilder, starts: bool) -> None:
        """Prompts that have begun, then others; these first where somebody has waited long."""
        begun = [one for one in self._running if one.generates and not one.newest and one.group.key[0] == base_id]
        if starts and self._waiting.any_long(base_id):
            self._start_prompts(base_id, room)
        for one in begun:
            if one in self._running and room.left > 0:
                self._piece(one, room)
        if starts:
            self._start_prompts(base_id, room)
        self._waiting.count(
            base_id, served={one.group.turn for one in self._running}, texts=(group.turn for group in self._scores)
        )

    def _see_rows(self) -> None:
        self._rows = SequenceQuotas(self._running, self._waiting.groups(), self.max_rows)
        self._waiting.see(self._rows)

    def _start_prompts(self, base_id: str, room: StepBuilder) -> None:
        """Prompts that wait: one of each key and adapter in turn."""
        while room.left > 0:
            if not self._place_for(base_id):
                break
            firsts = self._waiting.firsts(base_id, only=self._saving.one, besides=self._sent_away)
            sequence = next((one for one in firsts if self._claim(one.group)), None)
            if sequence is None:
                break
            self._source(sequence)  # what it will take over is not what makes room for it, if anything else can
            if not self._room_for(sequence):
                break
            self._waiting.had_turn(sequence.group.turn)
            self._start(sequence)
            self._piece(sequence, room)

    def _claim(self, group: SequenceGroup) -> bool:
        """Whether its adapter is there and has room beside the others; one that has waited long sends others away."""
        if not self._loaded(group):
            return False
        texts = [one.sequence for one in self._room.beside if one.sequence not in self._running]  # they run whole
        if self._waiting.long(group.turn) and AdapterBudget(self._claims.limit, texts).add(group):
            while not self._claims.add(group):
                others = [one for one in self._running if one.group.key[1] is not None]
                for one in [other for other in others if other.group.key[1] == others[-1].group.key[1]]:
                    self._preempt(one)
                self._claims = AdapterBudget(self._claims.limit, [*self._running, *texts])
        return self._claims.add(group)

    def _place_for(self, base_id: str) -> bool:
        """Whether another sequence may generate; who waited long takes a place of a key or adapter that has several."""
        if self.generating < self.max_rows:
            return True
        waiting = [
            one.group
            for one in self._waiting.firsts(base_id, only=self._saving.one, besides=self._sent_away)
            if self._waiting.long(one.group.turn)
        ]
        patient = next(filter(self._loaded, waiting), None)
        giving = [] if patient is None else self._rows.giving(patient)
        if len(giving) < 2:
            return False
        self._preempt(giving[-1])
        return True

    def _room_for(self, sequence: Sequence) -> bool:
        """Reserve memory for one that starts.

        An adapter that waited long takes it from the one with most rows, a request that it was saved for in vain from
        all that came later.
        """
        group = sequence.group
        if not self._saving.allows(group):
            return False
        if self._reserve(sequence, len(sequence.ids)):
            return True
        others, long = self._rows.giving(group)[:0:-1], self._waiting.long(group.turn)
        if self._saving.takes(group):
            others = [one for one in reversed(self._running) if one.holds and one.id > sequence.id]
        positions = sequence.before + len(sequence.ids)
        if long or self._saving.takes(group):
            for one in self._space.enough_of(others, group.key[0], positions, besides=self.kept.bytes):
                self._preempt(one)
        found = self._reserve(sequence, len(sequence.ids))
        if not found and (long or not sequence.generates):
            self._saving.refused(group, waited=long)
        return found

    def _piece(self, sequence: Sequence, room: StepBuilder) -> None:
        """As much of a sequence's tokens as there is room for."""
        source = None
        if sequence.generates and sequence.done == 0:
            source, sequence.done = self._source(sequence)
            if isinstance(source, CachedPrefix):
                self.kept.pin(source)
        length = min(len(sequence.ids) - sequence.done, room.left)
        whole = sequence.done + length == len(sequence.ids)
        wants: SegmentOutput = "score" if not sequence.generates else "next" if whole else "nothing"
        room.take(Segment(sequence, sequence.done, length, wants, copied=source))

    def _source(self, sequence: Sequence) -> tuple[Sequence | CachedPrefix | None, int]:
        """What a sequence takes over as it starts, another choice's or a kept text's, and of how many tokens."""
        choice = next((one for one in sequence.group.running if one.done >= sequence.prompt > 1), None)
        return self.kept.find(sequence) if choice is None else (choice, sequence.prompt - 1)

    def _of_scores(self, base_id: str, room: StepBuilder, starts: bool) -> None:
        """Texts that have begun, then those of each request in turn, of one length together."""
        for sequence in list(self._running):
            if not sequence.generates and sequence.group.key[0] == base_id and room.left > 0:
                self._piece(sequence, room)
        groups = self._text_turns.order(group for group in self._scores if group.key[0] == base_id) if starts else []
        for group in groups:
            if room.left < 1 or not self._claim(group):
                continue
            taken = len(room.beside)
            while group.waiting and self._score(group.waiting[0], room, group):
                self._waiting.started(group.turn)
            if len(room.beside) > taken:
                self._text_turns.had(group)
                self._scores.remove(group)
                self._scores.append(group)
        self._scores = deque(group for group in self._scores if group.waiting)

    def _score(self, sequence: Sequence, room: StepBuilder, group: SequenceGroup) -> bool:
        """Take a text into the step; False where there is no room for it now."""
        if sequence in self._sent_away:
            return False
        length = len(sequence.ids)
        fits = length <= room.left
        if not fits and room.beside:
            return False
        in_pieces = (not fits and not room.alone) or sequence.before > 0
        in_pieces = in_pieces and self._in_pieces(group.key[0])
        if in_pieces and self._room_for(sequence):
            self._start(sequence)
            self._piece(sequence, room)
            return True
        if sequence.before > 0 or (in_pieces and self._space.fits(group.key[0], length)):
            return False  # it goes in pieces once there is memory for it
        group.waiting.popleft()
        group.running[sequence] = None
        group.begin()
        self._saving.done(group)
        room.take(Segment(sequence, 0, length, "score", kept=False))
        return True

    # --- places ---------------------------------------------------------------------------------

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        base_id, positions = sequence.group.key[0], sequence.before + tokens
        missing = self._space.missing(sequence, base_id, positions)
        found = self.kept.make_room(missing) and self._space.reserve(sequence, base_id, positions)
        sequence.holds = sequence.holds or found
        return found

    def _start(self, sequence: Sequence) -> None:
        group = sequence.group
        group.waiting.remove(sequence)
        group.running[sequence] = None
        self._running[sequence] = None
        self._see_rows()
        self._waiting.started(group.turn)
        self._saving.done(group)
        group.begin()
        if sequence.generates and not group.waiting:
            self._waiting.remove(group)

    def _preempt(self, sequence: Sequence) -> None:
        """Give up a sequence's row; it starts again with the tokens it has."""
        group = sequence.group
        self._sent_away.add(sequence)
        self._room.give_back(sequence)
        self.kept.pin_only(one.copied for one in self._room.beside)
        self._leave(sequence)
        sequence.done = 0
        group.waiting.appendleft(sequence)
        if sequence.generates:
            self._waiting.again(group)
        elif group not in self._scores:
            self._scores.appendleft(group)
        self._see_rows()

    def _leave(self, sequence: Sequence, *, keep: bool = False) -> None:
        sequence.group.running.pop(sequence, None)
        self._running.pop(sequence, None)
        if sequence.holds:
            self._space.release(sequence)
            sequence.holds = False
            if keep:
                self.kept.keep(sequence)

    # --- what became of it ----------------------------------------------------------------------

    def computed(self, step: Step) -> None:
        """The keys and values of a step's segments are kept."""
        for segment in step.segments:
            if segment.kept and segment.sequence in self._running:
                segment.sequence.done = segment.start + segment.length

    def finish(self, sequences: Iterable[Sequence]) -> list[SequenceGroup]:
        """These are computed. Gives the requests that are finished by it; those of ended requests are ignored."""
        ended = []
        for sequence in sequences:
            group = sequence.group
            if group.state.final:
                continue
            self._leave(sequence, keep=True)
            group.ticket.rows_done += 1
            if not group.running and not group.waiting:
                self._end(group, State.FINISHED)
                ended.append(group)
        return ended

    def fail(self, groups: Iterable[SequenceGroup], error: BaseException) -> list[SequenceGroup]:
        """These requests end with `error`, all their sequences with them. Gives those that had not ended."""
        ended = [group for group in dict.fromkeys(groups) if not group.state.final]
        for group in ended:
            group.error = error
            self._end(group, State.FAILED)
        return ended

    def drop_cancelled(self) -> list[SequenceGroup]:
        """Requests whose ticket was cancelled end, all their sequences with them."""
        ended = [group for group in self._live if group.ticket.cancelled()]
        for group in ended:
            self._end(group, State.CANCELLED)
        return ended

    def _end(self, group: SequenceGroup, state: State) -> None:
        group.move(state)
        for sequence in list(group.running):
            self._leave(sequence, keep=state is State.CANCELLED)  # what a request has that failed may be unsound
        self._waiting.remove(group)
        self._saving.done(group)
        if group in self._scores:
            self._scores.remove(group)
        group.waiting.clear()
        del self._live[group]
        if not any(other.key[0] == group.key[0] for other in self._live):
            self._turns.remove(group.key[0])
