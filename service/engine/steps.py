"""Requests on their way through the engine, what of them one step computes, and what a step in the making has room for.

Values of the scheduler; no tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from registry.errors import Internal
from service.engine.request import GenerateRequest, Request, State, tokens_before

ModelKey = tuple[str, str | None]
"""Base id and adapter digest (None: the base alone): never a name, so that nothing stale is ever served."""

Owner = str | None
"""The key that asked, by its id; None is the server itself."""

QueueKey = tuple[str, str | None, Owner]
"""Base id, adapter digest and owner: whose requests wait in one line."""

PrefixScope = tuple[str, str | None, str]
"""Base id, adapter digest, and the namespaces of the key that asked: of equal ones keys and values are shared."""

MOVES = {
    State.WAITING: {State.RUNNING, State.FAILED, State.CANCELLED},
    State.RUNNING: {State.FINISHED, State.FAILED, State.CANCELLED},
}

SegmentOutput = Literal["nothing", "next", "score"]
"""Of a segment: only its keys and values, also the logits after its last token, or the likelihood of its tokens."""


class Ticket(Future[Any]):
    """The future of one request; `rows_done` of `rows` sequences are computed. Cancelling it is enough."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.rows_done = 0


@dataclass(eq=False)
class Sequence:
    """Window `index` of a score, or choice `index` of a generation, from admission to its end.

    `ids` are the tokens so far: the text's, and what was generated behind them. Keys and values of the first `done`
    are kept, if any are. `before` is the length of the prefix that its adapter puts before it.
    """

    id: int
    group: SequenceGroup
    index: int
    ids: list[int]
    before: int
    prompt: int
    done: int = 0
    holds: bool = False
    """Whether it has a row of memory."""

    @property
    def generates(self) -> bool:
        """Whether it is continued, and not scored."""
        return isinstance(self.group.request, GenerateRequest)

    @property
    def newest(self) -> bool:
        """Whether only its newest token is to be computed, and there are others before it."""
        return self.generates and self.holds and self.done == len(self.ids) - 1 and self.done > 0


@dataclass(eq=False)
class SequenceGroup:
    """A request on its way: its state, its ticket and the sequences that are not finished."""

    request: Request
    ticket: Ticket
    key: ModelKey
    state: State = State.WAITING
    waiting: deque[Sequence] = field(default_factory=deque)
    running: dict[Sequence, None] = field(default_factory=dict)  # ordered
    error: BaseException | None = None

    @property
    def owner(self) -> Owner:
        """The key that asked."""
        return self.request.owner

    @property
    def turn(self) -> QueueKey:
        """The line in which it waits."""
        return (*self.key, self.owner)

    def move(self, state: State) -> None:
        """Come into another state; raises Internal for one that does not follow."""
        if state not in MOVES.get(self.state, ()):
            raise Internal(f"a request went from {self.state.value} to {state.value}")
        self.state = state

    def begin(self) -> None:
        """A part of it runs; the first makes it a running request."""
        if self.state is State.WAITING:
            self.move(State.RUNNING)


def new_group(request: Request, ids: Iterator[int]) -> SequenceGroup:
    """A request that comes in, with its sequences, whose ids are the next of `ids`."""
    generating = isinstance(request, GenerateRequest)
    texts = [request.prompt] * request.params.n if isinstance(request, GenerateRequest) else request.windows
    digest, before = None if request.adapter is None else request.adapter.digest, tokens_before(request)
    group = SequenceGroup(request, Ticket(len(texts)), (request.base_id, digest))
    sequences = [Sequence(next(ids), group, index, list(text), before, len(text)) for index, text in enumerate(texts)]
    if not generating:  # those of one length are computed together
        sequences.sort(key=lambda one: -len(one.ids))
    group.waiting.extend(sequences)
    return group


def requested_bases(groups: Iterable[SequenceGroup]) -> dict[str, int]:
    """The base models that requests want, in their order, each with the bytes of its largest adapter."""
    found: dict[str, int] = {}
    for group in groups:
        adapter = group.request.adapter
        found[group.key[0]] = max(found.get(group.key[0], 0), 0 if adapter is None else adapter.size_bytes)
    return found


@dataclass(eq=False)
class CachedPrefix:
    """Tokens of a sequence that has ended, with their keys and values, for prompts of its scope that begin alike.

    `before` is the length of the prefix that stands before them. They lie in the row of `source` until they are copied
    out of it.
    """

    scope: PrefixScope
    ids: tuple[int, ...]
    before: int
    source: Sequence | None = field(repr=False)

    @property
    def positions(self) -> int:
        """How many keys and values a layer has."""
        return self.before + len(self.ids)


@dataclass(frozen=True)
class Segment:
    """Tokens `start` to `start + length` of a sequence.

    With `copied` its sequence first takes over the keys and values of another, or of a kept text: those of the first
    `start` tokens. `kept` says that keys and values are kept: those of a text scored in one piece are not.
    """

    sequence: Sequence
    start: int
    length: int
    wants: SegmentOutput
    kept: bool = True
    copied: Sequence | CachedPrefix | None = None


@dataclass(frozen=True)
class Step:
    """One forward pass of a base model."""

    base_id: str
    segments: tuple[Segment, ...]

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return sum(segment.length for segment in self.segments)

    @property
    def groups(self) -> list[SequenceGroup]:
        """The requests that have a part in it."""
        return list(dict.fromkeys(segment.sequence.group for segment in self.segments))

    def of(self, group: SequenceGroup) -> Step:
        """The part of one request."""
        return Step(self.base_id, tuple(s for s in self.segments if s.sequence.group is group))

    def without(self, groups: Container[SequenceGroup]) -> Step:
        """The parts of all other requests."""
        return Step(self.base_id, tuple(s for s in self.segments if s.sequence.group not in groups))


class AdapterBudget:
    """The adapters that run together, and the bytes that they take."""

    def __init__(self, limit: int | None, running: Iterable[Sequence]) -> None:
        self.limit = limit
        self._sizes: dict[str, int] = {}
        for group in dict.fromkeys(one.group for one in running):
            if group.request.adapter is not None:
                self._sizes[group.request.adapter.digest] = group.request.adapter.size_bytes

    def add(self, group: SequenceGroup) -> bool:
        """Whether a request's adapter is among them, or has room beside them; it is then."""
        adapter = group.request.adapter
        if adapter is None or adapter.digest in self._sizes:
            return True
        if self._sizes and self.limit is not None and sum(self._sizes.values()) + adapter.size_bytes > self.limit:
            return False
        self._sizes[adapter.digest] = adapter.size_bytes
        return True


class StepBuilder:
    """What a step takes: the newest tokens of streams, and as many tokens beside them as are `left`."""

    def __init__(self) -> None:
        self.newest: list[Segment] = []
        self.beside: list[Segment] = []
        self.left = 0
        """Tokens that it may still take."""
        self.streams_elsewhere = False
        """Whether streams of other base models wait for its end."""

    @property
    def alone(self) -> bool:
        """Whether no stream waits for its end."""
        return not self.newest and not self.streams_elsewhere

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All of it."""
        return (*self.newest, *self.beside)

    def take(self, segment: Segment) -> None:
        """Put a segment into it, beside the newest tokens."""
        self.beside.append(segment)
        self.left -= segment.length

    def give_back(self, sequence: Sequence) -> None:
        """Take a sequence's segment out again: it has been sent away."""
        self.left += sum(one.length for one in self.beside if one.sequence is sequence)
        self.newest = [one for one in self.newest if one.sequence is not sequence]
        self.beside = [one for one in self.beside if one.sequence is not sequence]
