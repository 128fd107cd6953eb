"""Fairness between keys: admission to the engine, and shares of the running sequences.

Used by the scheduler, under the engine's lock. Knows no tensors. The owner of a request is the key that sent it; the
owner of requests of the server's own jobs is None.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable

from registry.errors import Busy
from service.engine.request import GenerateRequest, State
from service.engine.steps import Owner, Sequence, SequenceGroup

ASSUMED_TOKENS = 512
"""Tokens that admission counts for a choice of a request without `max_tokens`."""
RECENT_SECONDS = 5.0
"""How long after its last request a key is expected to send another."""
MAX_OVERLOAD = 2
"""Multiple of the limits up to which keys below their share are admitted; each key counts for at most one limit."""


def remaining_tokens(group: SequenceGroup) -> int:
    """The most tokens that are still to be computed for a request."""
    limit = 0
    if isinstance(group.request, GenerateRequest):
        limit = ASSUMED_TOKENS if group.request.params.max_tokens is None else group.request.params.max_tokens
        if group.state is State.WAITING:  # its choices are alike: a loop over thousands would hold up the engine
            return len(group.waiting) * max(1, len(group.request.prompt) + limit)
    sequences = (*group.waiting, *group.running)
    return sum(max(1, sequence.prompt_length + limit - sequence.computed) for sequence in sequences)


class AdmissionControl:
    """Limits of what the engine holds at once: `max_requests`, with `max_tokens` tokens still to compute.

    While a limit is reached, a key that uses its equal share of it is refused. A key below its share is still admitted,
    so that no key can block another. A list of requests is admitted as a whole, whatever its size.
    """

    def __init__(self, max_requests: int, max_tokens: float = math.inf) -> None:
        self.max_requests = max_requests
        self.max_tokens = max_tokens

    def check(self, groups: Collection[SequenceGroup], owner: Owner, retry_after: Callable[[int], int]) -> None:
        """Raise Busy if a key has to wait; `retry_after` returns the seconds that a number of tokens takes."""
        requests_by_key: Counter[Owner] = Counter()
        tokens_by_key: Counter[Owner] = Counter()
        for group in groups:
            requests_by_key[group.owner] += 1
            tokens_by_key[group.owner] += remaining_tokens(group)
        tokens = tokens_by_key.total()
        if self._load(len(groups), tokens) < 1:
            return
        owners = {*requests_by_key, owner}
        is_below_share = self._load(requests_by_key[owner], tokens_by_key[owner]) * len(owners) < 1
        if is_below_share and not self._is_overloaded(requests_by_key, tokens_by_key):
            return
        excess_requests = max(len(groups) - self.max_requests + 1, 1)
        excess_tokens = 0 if self.max_tokens == math.inf else math.ceil(tokens - self.max_tokens)
        seconds = retry_after(max(math.ceil(tokens * excess_requests / len(groups)), excess_tokens))
        of_this_key = f", {requests_by_key[owner]} of them of this key" if requests_by_key[owner] < len(groups) else ""
        or_tokens = "" if self.max_tokens == math.inf else f" or {self.max_tokens} tokens"
        raise Busy(
            f"The engine holds {len(groups)} requests{of_this_key}, with {tokens} tokens to compute; its limit is "
            f"{self.max_requests} requests{or_tokens}: try again in {seconds} s.",
            retry_after=seconds,
        )

    def _is_overloaded(self, requests_by_key: Counter[Owner], tokens_by_key: Counter[Owner]) -> bool:
        """Return True if no key is admitted any more, so that memory is bounded for any number of keys.

        A key may hold more than a limit, since a single request may. It counts for one limit, and blocks no other key.
        """
        requests = sum(min(count, self.max_requests) for count in requests_by_key.values())
        tokens = sum(min(count, self.max_tokens) for count in tokens_by_key.values())
        return self._load(requests, tokens) >= MAX_OVERLOAD

    def _load(self, requests: int, tokens: float) -> float:
        return max(requests / self.max_requests, 0.0 if self.max_tokens == math.inf else tokens / self.max_tokens)


class SequenceShares:
    """The sequences that generate, by key, and each key's equal share of `max_running`.

    Keys without running or waiting requests get no share; a single key may use everything.
    """

    def __init__(self, running: Iterable[Sequence], waiting: Iterable[SequenceGroup], max_running: int) -> None:
        self._running: dict[Owner, list[Sequence]] = {}
        for sequence in running:
            if sequence.is_generation:
                self._running.setdefault(sequence.group.owner, []).append(sequence)
        owners = {*self._running, *(group.owner for group in waiting)}
        self._share = math.inf if len(owners) < 2 else max(1, max_running // len(owners))

    def running(self, owner: Owner) -> int:
        """The number of sequences that generate for a key."""
        return len(self._running.get(owner, ()))

    def is_below(self, owner: Owner) -> bool:
        """Return True if a key runs less than its share while others have work."""
        return self._share != math.inf and self.running(owner) < self._share

    def preemptible(self, group: SequenceGroup) -> list[Sequence]:
        """The sequences that may be preempted for a request, last first to go.

        If its key is below its share, they are of the key that runs most, else of its own key; among those, they are
        of the adapter that runs most.
        """
        largest = max(self._running.values(), key=len, default=[])
        if self.is_below(group.owner) and len(largest) > self._share:
            same_adapter = _most_of_one_adapter(largest)
            return same_adapter if len(same_adapter) > 1 else largest
        return _most_of_one_adapter(largest if self._share == math.inf else self._running.get(group.owner, []))


def _most_of_one_adapter(sequences: Iterable[Sequence]) -> list[Sequence]:
    """The sequences of the base model and adapter that have most of them."""
    by_adapter: dict[tuple[str, str | None], list[Sequence]] = {}
    for sequence in sequences:
        by_adapter.setdefault((sequence.group.base_id, sequence.group.digest), []).append(sequence)
    return max(by_adapter.values(), key=len, default=[])


class RecentKeys:
    """The keys that have sent requests lately; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_request: dict[Owner, float] = {}

    def note_request(self, owner: Owner) -> None:
        """Record a request of a key."""
        self._last_request[owner] = self._clock()

    def has_several(self) -> bool:
        """Return True if more than one key has sent a request in the last `RECENT_SECONDS`."""
        if len(self._last_request) < 2:
            return False
        since = self._clock() - RECENT_SECONDS
        self._last_request = {owner: at for owner, at in self._last_request.items() if at >= since}
        return len(self._last_request) > 1
