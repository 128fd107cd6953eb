"""What each key gets of the engine while others want some of it: places in the queue, and rows that generate.

Of the scheduler, under the engine's lock. Knows no tensors. The owner of a request is the key that sent it; what the
server asks for itself, for its jobs, has the owner None.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable

from registry.errors import Busy
from service.engine.request import GenerateRequest, State
from service.engine.steps import Key, Owner, Sequence, Work

UNSAID = 512
"""Tokens that a choice counts for in the queue whose request names no limit."""
LATELY = 5.0
"""For so many seconds after its last request a key may soon ask again."""
MOST = 2
"""The queue never holds more than so many times its limits, for the sake of keys that have little in it."""


def tokens_left(work: Work) -> int:
    """Tokens that are still to be computed for a request, at most."""
    limit = 0
    if isinstance(work.request, GenerateRequest):
        limit = UNSAID if work.request.params.max_tokens is None else work.request.params.max_tokens
        if work.state is State.WAITING:  # its choices are alike, and looking at each holds up the engine
            return len(work.waiting) * max(1, len(work.request.prompt) + limit)
    return sum(max(1, one.prompt + limit - one.done) for one in (*work.waiting, *work.running))


class Queue:
    """How much the engine holds at once: `max_requests`, of `max_tokens` tokens that are still to be computed.

    While one of them is reached, a key is refused that has its equal part of it; one that has less still gets in, so
    that nobody can shut the others out. A key that gets in does so with the whole list that it sends.
    """

    def __init__(self, max_requests: int, max_tokens: float = math.inf) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens

    def is_full(self, live: Collection[Work]) -> bool:
        """Whether a limit is reached."""
        return self._load(len(live), sum(map(tokens_left, live))) >= 1

    def check(self, live: Collection[Work], owner: Owner, retry_after: Callable[[int], int]) -> None:
        """Raises Busy where a key has to wait; `retry_after` gives the seconds that so many tokens take."""
        left = {work: tokens_left(work) for work in live}
        tokens = sum(left.values())
        load = self._load(len(live), tokens)
        if load < 1:
            return
        own = [work for work in live if work.owner == owner]
        owners = {work.owner for work in live} | {owner}
        if load < MOST and self._load(len(own), sum(left[work] for work in own)) * len(owners) < 1:
            return
        first = max(len(live) - self.max_requests + 1, 1)  # so many have to end
        excess = 0 if self.max_tokens == math.inf else math.ceil(tokens - self.max_tokens)
        seconds = retry_after(max(math.ceil(tokens * first / len(live)), excess))
        others = f", {len(own)} of them of this key" if len(own) < len(live) else ""
        what = f"{len(live)} requests{others}, with {tokens} tokens to compute"
        most = f"{self.max_requests} requests" + (
            "" if self.max_tokens == math.inf else f" or {self.max_tokens} tokens"
        )
        raise Busy(f"The engine holds {what}; its limit is {most}: try again in {seconds} s.", retry_after=seconds)

    def _load(self, requests: int, tokens: int) -> float:
        return max(requests / self.max_requests, 0.0 if self.max_tokens == math.inf else tokens / self.max_tokens)


class Rows:
    """The sequences that generate, by the key that asked for them, and each key's equal part of `most` rows.

    The part counts for keys only that have something waiting: what nobody else wants, whoever asks may have.
    """

    def __init__(self, running: Iterable[Sequence], waiting: Iterable[Work], most: int) -> None:
        self._rows: dict[Owner, list[Sequence]] = {}
        for one in running:
            if one.generates:
                self._rows.setdefault(one.work.owner, []).append(one)
        owners = {*self._rows, *(work.owner for work in waiting)}
        self._part = math.inf if len(owners) < 2 else max(1, most // len(owners))

    def of(self, owner: Owner) -> int:
        """How many rows a key has."""
        return len(self._rows.get(owner, ()))

    def below(self, owner: Owner) -> bool:
        """Whether a key has less than its part while others have some."""
        return self._part != math.inf and self.of(owner) < self._part

    def giving(self, work: Work) -> list[Sequence]:
        """The rows of which the last make room for a request, in their order.

        They are of the key that has most, if that of the request has less than its part, else of that key itself; and
        of its rows those of the adapter that has most.
        """
        most = max(self._rows.values(), key=len, default=[])
        own = self._rows.get(work.owner, [])
        if self.below(work.owner) and len(most) > self._part:
            alike = _most_alike(most)
            return alike if len(alike) > 1 else most
        return _most_alike(most if self._part == math.inf else own)


def _most_alike(rows: Iterable[Sequence]) -> list[Sequence]:
    """Those of the adapter that has most of them."""
    found: dict[Key, list[Sequence]] = {}
    for one in rows:
        found.setdefault(one.work.key, []).append(one)
    return max(found.values(), key=len, default=[])


class Company:
    """The keys that have asked the engine lately; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: dict[Owner, float] = {}

    def asked(self, owner: Owner) -> None:
        """A key asks now."""
        self._asked[owner] = self._clock()

    def several(self) -> bool:
        """Whether more than one key has asked in the last `LATELY` seconds."""
        if len(self._asked) < 2:
            return False
        since = self._clock() - LATELY
        self._asked = {owner: at for owner, at in self._asked.items() if at >= since}
        return len(self._asked) > 1


class TextTurns:
    """Whose texts are scored next: keys in turn, those of one key in theirs."""

    def __init__(self) -> None:
        self._last: dict[Owner, int] = {}
        self._turn = 0

    def order(self, works: Iterable[Work]) -> list[Work]:
        """Requests, those first of the key whose last turn is longest ago."""
        found = list(works)
        owners = {work.owner for work in found}
        self._last = {owner: turn for owner, turn in self._last.items() if owner in owners}
        return sorted(found, key=lambda work: self._last.get(work.owner, 0))

    def had(self, work: Work) -> None:
        """A request's key had a turn."""
        self._turn += 1
        self._last[work.owner] = self._turn
