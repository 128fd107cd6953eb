"""Which rows run next. Knows requests, rows and lengths; knows no tensors, no models and no threads.

Called by the engine only, under its lock. Every state transition of a request happens here. Rows of one batch
share base model and adapter digest. Turns go round between three kinds of work, so that none waits for another to
end: each decode group (rows generating together), new prompts, and one-pass scoring.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from registry.errors import Busy, Internal
from service.engine.request import GenerateRequest, Request, State

Key = tuple[str, str | None]
"""Base id and adapter digest (None: the base alone): never a name, so that nothing stale is ever served."""

Kind = Literal["score", "prefill", "decode"]

SCORE_SHARE = 4
"""While rows generate, a scoring batch takes only this fraction of the token budget, so that streams keep moving."""

MOVES = {
    State.WAITING: {State.RUNNING, State.FAILED, State.CANCELLED},
    State.RUNNING: {State.FINISHED, State.FAILED, State.CANCELLED},
}


class Ticket(Future[Any]):
    """The future of one request; `rows_done` of `rows` sequences are computed. Cancelling it is enough."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.rows_done = 0


@dataclass(eq=False)
class Row:
    """One sequence of a request: window `index` of a score, or choice `index` of a generation.

    `length` is what it takes in a batch: its tokens, and those of its adapter's prefix, which each row has of its own.
    """

    id: int
    work: Work
    index: int
    length: int


@dataclass(eq=False)
class Work:
    """A request on its way: its state, its ticket and the rows that are not finished."""

    request: Request
    ticket: Ticket
    key: Key
    state: State = State.WAITING
    waiting: deque[Row] = field(default_factory=deque)
    running: set[Row] = field(default_factory=set)
    error: BaseException | None = None


@dataclass(frozen=True)
class Batch:
    """Rows that share one key, to be run in one forward pass."""

    kind: Kind
    key: Key
    rows: tuple[Row, ...]


class Scheduler:
    """A bounded set of requests, served in turns.

    At most `max_queue` requests are held, `max_rows` rows generate together, and a batch has at most
    `max_batch_tokens` padded tokens (a single longer row runs alone).
    """

    def __init__(self, *, max_queue: int, max_batch_tokens: int, max_rows: int) -> None:
        self.max_queue = max_queue
        self.max_batch_tokens = max_batch_tokens
        self.max_rows = max_rows
        self._ids = itertools.count()
        self._prompts: deque[Work] = deque()
        self._scores: deque[Work] = deque()
        self._groups: dict[Key, list[Row]] = {}
        self._turns: deque[Key | Literal["prefill", "score"]] = deque(["prefill", "score"])
        self._live: dict[Work, None] = {}  # ordered

    # --- coming in ------------------------------------------------------------------------------

    def add(self, requests: Sequence[Request], *, retry_after: int = 1) -> list[Work]:
        """Take all of these requests or none; raises Busy when the queue is full.

        A queue that is not full takes one list of requests whatever its length, so that a long list of prompts
        gets in at all.
        """
        if self.depth >= self.max_queue:
            raise Busy(
                f"The engine holds {self.depth} requests, its limit; try again in {retry_after} s.",
                retry_after=retry_after,
            )
        return [self._admit(request) for request in requests]

    def _admit(self, request: Request) -> Work:
        generating = isinstance(request, GenerateRequest)
        lengths = [len(request.prompt)] * request.params.n if generating else [len(w) for w in request.windows]  # type: ignore[union-attr]
        digest, before = None, 0
        if request.adapter is not None:
            digest, before = request.adapter.digest, request.adapter.config.prefix_length
        work = Work(request, Ticket(len(lengths)), (request.base_id, digest))
        rows = [Row(next(self._ids), work, index, before + length) for index, length in enumerate(lengths)]
        if not generating:  # rows of like length share batches: little padding
            rows.sort(key=lambda row: -row.length)
        work.waiting.extend(rows)
        self._live[work] = None
        (self._prompts if generating else self._scores).append(work)
        return work

    # --- looking --------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Requests held: waiting or running."""
        return len(self._live)

    @property
    def generating(self) -> int:
        """Rows that generate now."""
        return sum(len(rows) for rows in self._groups.values())

    @property
    def waiting(self) -> int:
        """Requests of which no row has run."""
        return sum(work.state is State.WAITING for work in self._live)

    def wanted(self) -> dict[str, int]:
        """The base models that requests want, that of the oldest first, each with the bytes of its largest adapter."""
        found: dict[str, int] = {}
        for work in self._live:
            adapter = work.request.adapter
            found[work.key[0]] = max(found.get(work.key[0], 0), 0 if adapter is None else adapter.size_bytes)
        return found

    def live(self) -> list[Work]:
        """Every request held, oldest first."""
        return list(self._live)

    def alive(self) -> dict[Key, list[int]]:
        """Ids of the rows that generate, by group, in the order in which they joined."""
        return {key: [row.id for row in rows] for key, rows in self._groups.items()}

    # --- what runs next -------------------------------------------------------------------------

    def next(self, ready: Container[str] | None = None) -> Batch | None:
        """The batch whose turn it is, None when there is nothing to run. Its rows count as running from here on.

        Rows start on base models that are `ready` (None: on any); those that generate go on.
        """
        for _ in range(len(self._turns)):
            turn = self._turns[0]
            self._turns.rotate(-1)
            if turn == "prefill":
                batch = self._next_prefill(ready)
            elif turn == "score":
                batch = self._next_score(ready)
            else:
                batch = Batch("decode", turn, tuple(self._groups[turn]))
            if batch is not None:
                return batch
        return None

    def _next_prefill(self, ready: Container[str] | None) -> Batch | None:
        """The oldest waiting prompt and as many of its key as fit; each turn serves the oldest, so none starves."""
        room = self.max_rows - self.generating
        oldest = _first_ready(self._prompts, ready)
        if oldest is None or room < 1:
            return None
        key = oldest.key
        rows: list[Row] = []
        longest = 0
        for work in [work for work in self._prompts if work.key == key]:
            length = max(longest, work.waiting[0].length)
            while work.waiting and len(rows) < room and self._fits(len(rows) + 1, length, self.max_batch_tokens):
                rows.append(self._start(work))
                longest = length
        self._prompts = deque(work for work in self._prompts if work.waiting)
        if key not in self._groups:
            self._groups[key] = []
            self._turns.append(key)
        self._groups[key].extend(rows)
        return Batch("prefill", key, tuple(rows))

    def _next_score(self, ready: Container[str] | None) -> Batch | None:
        """Windows of the request whose turn it is, filled up with those of others of the same key."""
        first = _first_ready(self._scores, ready)
        if first is None:
            return None
        budget = self.max_batch_tokens // (SCORE_SHARE if self._groups else 1)
        self._scores.remove(first)
        self._scores.append(first)
        rows = [self._start(first)]
        tokens = rows[0].length
        for work in [first, *(other for other in self._scores if other.key == first.key and other is not first)]:
            while work.waiting and tokens + work.waiting[0].length <= budget:
                rows.append(self._start(work))
                tokens += rows[-1].length
        self._scores = deque(work for work in self._scores if work.waiting)
        return Batch("score", first.key, tuple(rows))

    def _fits(self, rows: int, longest: int, budget: int) -> bool:
        return rows == 1 or rows * longest <= budget

    def _start(self, work: Work) -> Row:
        if work.state is State.WAITING:
            self._move(work, State.RUNNING)
        row = work.waiting.popleft()
        work.running.add(row)
        return row

    # --- what became of it ----------------------------------------------------------------------

    def finish(self, rows: Iterable[Row]) -> list[Work]:
        """These rows are computed. Gives the requests that are finished by it; rows of ended requests are ignored."""
        ended = []
        for row in rows:
            work = row.work
            if work.state.final:
                continue
            work.running.remove(row)
            work.ticket.rows_done += 1
            self._leave_group([row])
            if not work.running and not work.waiting:
                self._end(work, State.FINISHED)
                ended.append(work)
        return ended

    def fail(self, works: Iterable[Work], error: BaseException) -> list[Work]:
        """These requests end with `error`, all their rows with them. Gives those that had not ended."""
        ended = [work for work in dict.fromkeys(works) if not work.state.final]
        for work in ended:
            work.error = error
            self._end(work, State.FAILED)
        return ended

    def drop_cancelled(self) -> list[Work]:
        """Requests whose ticket was cancelled end, all their rows with them."""
        ended = [work for work in self._live if work.ticket.cancelled()]
        for work in ended:
            self._end(work, State.CANCELLED)
        return ended

    def _end(self, work: Work, state: State) -> None:
        self._move(work, state)
        self._leave_group(work.running)
        for queue in (self._prompts, self._scores):
            if work in queue:
                queue.remove(work)
        work.waiting.clear()
        work.running.clear()
        del self._live[work]

    def _leave_group(self, rows: Iterable[Row]) -> None:
        gone = set(rows)
        for key in {row.work.key for row in gone}:
            if key not in self._groups:
                continue
            self._groups[key] = [row for row in self._groups[key] if row not in gone]
            if not self._groups[key]:
                del self._groups[key]
                self._turns.remove(key)

    def _move(self, work: Work, state: State) -> None:
        if state not in MOVES.get(work.state, ()):
            raise Internal(f"a request went from {work.state.value} to {state.value}")
        work.state = state


def _first_ready(works: Iterable[Work], ready: Container[str] | None) -> Work | None:
    return next((work for work in works if ready is None or work.key[0] in ready), None)
