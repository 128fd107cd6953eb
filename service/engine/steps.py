"""Values of the scheduler: requests with their sequences, segments of a step, and a step being built. No tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from service.engine.request import GenerateRequest, Request, RequestTimeline, State, virtual_tokens

Owner = str | None
"""Id of the key that sent a request; None is the server itself."""

QueueKey = tuple[str, str | None, Owner]
"""Base id, adapter digest and owner: requests with equal ones wait in one queue."""

TURN_TOKENS = 16
"""Tokens that a sequence generates before it may be preempted for another adapter."""

PrefixScope = tuple[str, str | None, str]
"""Base id, adapter digest, and the namespaces of the key: cached prefixes are shared within one scope."""

SegmentOutput = Literal["nothing", "next", "score"]
"""Result of a segment besides its keys and values: none, logits after its last token, or likelihoods of its tokens."""


class Ticket(Future[Any]):
    """The future of one request; `rows_done` of `rows` sequences are computed. Cancelling it cancels the request."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.rows_done = 0
        self.timeline: RequestTimeline | None = None
        """Set before `on_end` is called."""


@dataclass(eq=False)
class Sequence:
    """Window `index` of a score, or choice `index` of a generation, from admission to its end.

    `ids` are the tokens of the text, followed by the generated ones; the first `computed` have keys and values.
    `virtual_tokens` is the length of its adapter's prefix.
    """

    id: int
    group: SequenceGroup
    index: int
    ids: list[int]
    virtual_tokens: int
    prompt_length: int
    computed: int = 0
    has_row: bool = False
    """True while memory is reserved for its keys and values."""
    started_with: int = 0
    """The number of its tokens when it last started."""

    @property
    def is_generation(self) -> bool:
        """True if it is continued, False if it is scored."""
        return isinstance(self.group.request, GenerateRequest)

    @property
    def is_decoding(self) -> bool:
        """True if only its newest token remains to be computed."""
        return self.is_generation and self.has_row and 0 < self.computed == len(self.ids) - 1

    @property
    def has_had_turn(self) -> bool:
        """True if it has generated `TURN_TOKENS` tokens since it last started."""
        return len(self.ids) - self.started_with >= TURN_TOKENS

    def next_segment(self, token_budget: int, *, copy_from: Sequence | CachedPrefix | None) -> Segment:
        """The next tokens to compute, at most `token_budget`."""
        length = min(len(self.ids) - self.computed, token_budget)
        is_last = self.computed + length == len(self.ids)
        output: SegmentOutput = "score" if not self.is_generation else "next" if is_last else "nothing"
        return Segment(self, self.computed, length, output, copy_from=copy_from)


@dataclass(eq=False)
class SequenceGroup:
    """A request in the engine: its state, its ticket, and those of its sequences that are not finished."""

    request: Request
    ticket: Ticket
    state: State = State.WAITING
    waiting: deque[Sequence] = field(default_factory=deque)
    running: dict[Sequence, None] = field(default_factory=dict)  # ordered
    error: BaseException | None = None

    @classmethod
    def of(cls, request: Request, ids: Iterator[int]) -> SequenceGroup:
        """A waiting request with its sequences, numbered by `ids`."""
        texts = [request.prompt] * request.params.n if isinstance(request, GenerateRequest) else request.windows
        group = cls(request, Ticket(len(texts)))
        prefix = virtual_tokens(request)
        sequences = [
            Sequence(next(ids), group, index, list(text), prefix, len(text)) for index, text in enumerate(texts)
        ]
        if not isinstance(request, GenerateRequest):  # those of one length are computed together
            sequences.sort(key=lambda sequence: -len(sequence.ids))
        group.waiting.extend(sequences)
        return group

    @property
    def base_id(self) -> str:
        """The base model's id."""
        return self.request.base_id

    @property
    def digest(self) -> str | None:
        """The adapter's digest, None for the base model alone. Never a name, which could be moved meanwhile."""
        return None if self.request.adapter is None else self.request.adapter.digest

    @property
    def owner(self) -> Owner:
        """The key that sent the request."""
        return self.request.owner

    @property
    def queue_key(self) -> QueueKey:
        """The queue in which it waits."""
        return self.base_id, self.digest, self.owner


def requested_bases(groups: Iterable[SequenceGroup], running: Iterable[SequenceGroup]) -> dict[str, int]:
    """The base models of these requests, in their order, each with bytes for adapters.

    They suffice for its largest requested adapter, and for the adapters of all `running` requests together, whatever
    base model these have.
    """
    in_use = sum({(group.base_id, group.digest): _adapter_bytes(group) for group in running}.values())
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group.base_id] = max(sizes.get(group.base_id, in_use), _adapter_bytes(group))
    return sizes


def _adapter_bytes(group: SequenceGroup) -> int:
    return 0 if group.request.adapter is None else group.request.adapter.size_bytes


@dataclass(eq=False)
class CachedPrefix:
    """Tokens of an ended sequence with their keys and values, for prompts of its scope that begin alike.

    The keys and values of `virtual_tokens` precede them. They lie in the row of `source` until they are copied.
    """

    scope: PrefixScope
    ids: tuple[int, ...]
    virtual_tokens: int
    source: Sequence | None = field(repr=False)

    @property
    def positions(self) -> int:
        """Keys and values in each layer."""
        return self.virtual_tokens + len(self.ids)


@dataclass(frozen=True)
class Segment:
    """Tokens `start` to `start + length` of a sequence.

    With `copy_from` the sequence first copies the keys and values of the first `start` tokens from another sequence or
    a cached prefix. `keeps_kv` is False for a text that is scored in one piece.
    """

    sequence: Sequence
    start: int
    length: int
    output: SegmentOutput
    keeps_kv: bool = True
    copy_from: Sequence | CachedPrefix | None = None

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.start + self.length


@dataclass(frozen=True)
class Step:
    """One forward pass of a base model."""

    base_id: str
    segments: tuple[Segment, ...]

    @property
    def tokens(self) -> int:
        """The number of tokens that are computed."""
        return sum(segment.length for segment in self.segments)

    @property
    def groups(self) -> list[SequenceGroup]:
        """The requests of its segments."""
        return list(dict.fromkeys(segment.sequence.group for segment in self.segments))

    def only(self, group: SequenceGroup) -> Step:
        """The segments of one request."""
        return Step(self.base_id, tuple(s for s in self.segments if s.sequence.group is group))

    def without(self, groups: Container[SequenceGroup]) -> Step:
        """The segments of all requests but these."""
        return Step(self.base_id, tuple(s for s in self.segments if s.sequence.group not in groups))


class AdapterBudget:
    """The adapters of running sequences, at most `limit` bytes together (None: no limit), or a single larger one."""

    def __init__(self, limit: int | None, running: Iterable[Sequence]) -> None:
        self.limit = limit
        self.is_closed = False
        """True while no request with an adapter may start."""
        self._sizes: dict[str, int] = {}
        for group in dict.fromkeys(sequence.group for sequence in running):
            if group.request.adapter is not None:
                self._sizes[group.request.adapter.digest] = group.request.adapter.size_bytes

    def try_add(self, group: SequenceGroup) -> bool:
        """Add a request's adapter; return False if it does not fit."""
        if not self.fits(group):
            return False
        if group.request.adapter is not None:
            self._sizes[group.request.adapter.digest] = group.request.adapter.size_bytes
        return True

    def fits(self, group: SequenceGroup) -> bool:
        """Return True if a request's adapter is among these or can be added."""
        adapter = group.request.adapter
        if adapter is None or self.is_closed:
            return adapter is None
        if adapter.digest in self._sizes or not self._sizes or self.limit is None:
            return True
        return sum(self._sizes.values()) + adapter.size_bytes <= self.limit


class StepBuilder:
    """A step being scheduled: decode segments, and prefill segments within a token budget."""

    def __init__(self) -> None:
        self.decodes: list[Segment] = []
        self.prefills: list[Segment] = []
        self.token_budget = 0
        """Prefill tokens that may still be added."""
        self.others_decoding = False
        """True if streams of other base models wait for its end."""

    @property
    def delays_nobody(self) -> bool:
        """True if no stream waits for its end."""
        return not self.decodes and not self.others_decoding

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, decodes first."""
        return (*self.decodes, *self.prefills)

    def add(self, segment: Segment) -> None:
        """Add a prefill segment."""
        self.prefills.append(segment)
        self.token_budget -= segment.length

    def remove(self, sequence: Sequence) -> None:
        """Remove the segment of a sequence that was preempted."""
        self.token_budget += sum(segment.length for segment in self.prefills if segment.sequence is sequence)
        self.decodes = [segment for segment in self.decodes if segment.sequence is not sequence]
        self.prefills = [segment for segment in self.prefills if segment.sequence is not sequence]
