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
from service.engine.steps import ModelKey, Owner, Sequence, SequenceGroup

ASSUMED_TOKENS = 512
"""Tokens that a choice counts for in the queue whose request names no limit."""
RECENT_SECONDS = 5.0
"""For so many seconds after its last request a key may soon ask again."""
MAX_OVERLOAD = 2
"""The queue never holds more than so many times its limits, for the sake of keys that have little in it."""


def remaining_tokens(group: SequenceGroup) -> int:
    """Tokens that are still to be computed for a request, at most."""
    limit = 0
    if isinstance(group.request, GenerateRequest):
        limit = ASSUMED_TOKENS if group.request.params.max_tokens is None else group.request.params.max_tokens
        if group.state is State.WAITING:  # its choices are alike, and looking at each holds up the engine
            return len(group.waiting) * max(1, len(group.request.prompt) + limit)
    return sum(max(1, one.prompt + limit - one.done) for one in (*group.waiting, *group.running))


class AdmissionControl:
    """How much the engine holds at once: `max_requests`, of `max_tokens` tokens that are still to be computed.

    While one of them is reached, a key is refused that has its equal part of it; one that has less still gets in, so
    that nobody can shut the others out. A key that gets in does so with the whole list that it sends.
    """

    def __init__(self, max_requests: int, max_tokens: float = math.inf) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens

    def is_full(self, live: Collection[SequenceGroup]) -> bool:
        """Whether a limit is reached."""
        return self._load(len(live), sum(map(remaining_tokens, live))) >= 1

    def check(self, live: Collection[SequenceGroup], owner: Owner, retry_after: Callable[[int], int]) -> None:
        """Raises Busy where a key has to wait; `retry_after` gives the seconds that so many tokens take."""
        left = {group: remaining_tokens(group) for group in live}
        tokens = sum(left.values())
        load = self._load(len(live), tokens)
        if load < 1:
            return
        own = [group for group in live if group.owner == owner]
        owners = {group.owner for group in live} | {owner}
        if load < MAX_OVERLOAD and self._load(len(own), sum(left[group] for group in own)) * len(owners) < 1:
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


class SequenceQuotas:
    """The sequences that generate, by the key that asked for them, and each key's equal part of `most` rows.

    The part counts for keys only that have something waiting: what nobody else wants, whoever asks may have.
    """

    def __init__(self, running: Iterable[Sequence], waiting: Iterable[SequenceGroup], most: int) -> None:
        self._rows: dict[Owner, list[Sequence]] = {}
        for one in running:
            if one.generates:
                self._rows.setdefault(one.group.owner, []).append(one)
        owners = {*self._rows, *(group.owner for group in waiting)}
        self._part = math.inf if len(owners) < 2 else max(1, most // len(owners))

    def of(self, owner: Owner) -> int:
        """How many rows a key has."""
        return len(self._rows.get(owner, ()))

    def below(self, owner: Owner) -> bool:
        """Whether a key has less than its part while others have some."""
        return self._part != math.inf and self.of(owner) < self._part

    def giving(self, group: SequenceGroup) -> list[Sequence]:
        """The rows of which the last make room for a request, in their order.

        They are of the key that has most, if that of the request has less than its part, else of that key itself; and
        of its rows those of the adapter that has most.
        """
        most = max(self._rows.values(), key=len, default=[])
        own = self._rows.get(group.owner, [])
        if self.below(group.owner) and len(most) > self._part:
            alike = _most_alike(most)
            return alike if len(alike) > 1 else most
        return _most_alike(most if self._part == math.inf else own)


def _most_alike(rows: Iterable[Sequence]) -> list[Sequence]:
    """Those of the adapter that has most of them."""
    found: dict[ModelKey, list[Sequence]] = {}
    for one in rows:
        found.setdefault(one.group.key, []).append(one)
    return max(found.values(), key=len, default=[])


class RecentKeys:
    """The keys that have asked the engine lately; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: dict[Owner, float] = {}

    def asked(self, owner: Owner) -> None:
        """A key asks now."""
        self._asked[owner] = self._clock()

    def several(self) -> bool:
        """Whether more than one key has asked in the last `RECENT_SECONDS` seconds."""
        if len(self._asked) < 2:
            return False
        since = self._clock() - RECENT_SECONDS
        self._asked = {owner: at for owner, at in self._asked.items() if at >= since}
        return len(self._asked) > 1


class KeyTurns:
    """Whose texts are scored next: keys in turn, those of one key in theirs."""

    def __init__(self) -> None:
        self._last: dict[Owner, int] = {}
        self._turn = 0

    def order(self, groups: Iterable[SequenceGroup]) -> list[SequenceGroup]:
        """Requests, those first of the key whose last turn is longest ago."""
        found = list(groups)
        owners = {group.owner for group in found}
        self._last = {owner: turn for owner, turn in self._last.items() if owner in owners}
        return sorted(found, key=lambda group: self._last.get(group.owner, 0))

    def had(self, group: SequenceGroup) -> None:
        """A request's key had a turn."""
        self._turn += 1
        self._last[group.owner] = self._turn
