"""How many tokens a step takes beside those of the streams, so that each stream's next token comes in good time."""

from __future__ import annotations

from collections.abc import Iterable

from service.engine.key_quotas import RecentKeys

MIN_TOKENS = 16
"""Tokens that a step takes in any case: without them, prompts and texts would stand still beside streams."""
SHARE = 4
"""Before anything was measured, a step takes one part in so many of what it may."""
GAP_SECONDS = 0.2
"""How long a step may take in any case where prompts wait for streams of their own key only.

A stream loses nothing by it but its evenness: prompts that are computed sooner are out of its way sooner, and the step
of a token is paid less often beside them.
"""
SMOOTH = 0.2
STEPS = 8
"""A step without streams takes as long as so many of theirs where another key's request may come while it runs."""
PROBE_INTERVAL = 64
"""One step in so many is the streams' alone."""


class TokenBudget:
    """Seconds that steps took, by base model: those of streams alone, and of a token beside them.

    A step beside streams is to take no more than twice as long as one of streams alone, or `GAP_SECONDS` where nobody
    else has work; and a step between those of other base models with streams no longer than these. A step without
    streams is short, too, while there are several keys: `company` knows them.
    """

    def __init__(self) -> None:
        self.company = RecentKeys()
        self._asked: dict[str, int] = {}
        self._streams: dict[str, float] = {}  # seconds of a step of newest tokens alone
        self._token: dict[str, float] = {}  # seconds of any other token

    def beside(self, base_id: str, most: int, *, among_themselves: bool = False) -> int:
        """Tokens that the next step of a base model may take beside the newest ones, at most `most`.

        `among_themselves` says that streams and prompts are of one key, and nobody else has work. The first step, and
        one now and then, is the streams' alone: what it takes tells what the others may.
        """
        self._asked[base_id] = self._asked.get(base_id, -1) + 1
        if self._asked[base_id] % PROBE_INTERVAL == 0:
            return 0
        promised = self._in_the_time_of(base_id, base_id, most)
        streams, token = self._streams.get(base_id), self._token.get(base_id)
        if not among_themselves or streams is None or not token:
            return promised
        return max(promised, min(most, int((GAP_SECONDS - streams) / token)))

    def between(self, base_id: str, streaming: Iterable[str], most: int) -> int:
        """Tokens that a step may take which has no streams, between those of base models that have, at most `most`.

        They take turns, so it is to take no longer than a step of the streams that wait for it. In company it is to
        take no longer than a few of its own base model's: a request that comes has to wait for its end.
        """
        streams, token = self._streams.get(base_id), self._token.get(base_id)
        if streams is not None and token and self.company.several():
            most = min(most, max(MIN_TOKENS, int(STEPS * streams / token)))
        return min((self._in_the_time_of(one, base_id, most) for one in streaming), default=most)

    def _in_the_time_of(self, streaming: str, base_id: str, most: int) -> int:
        """Tokens of a base model that take as long as a step of streams."""
        streams, token = self._streams.get(streaming), self._token.get(base_id)
        if streams is None or not token:
            return max(MIN_TOKENS, most // SHARE)
        return max(MIN_TOKENS, min(most, int(streams / token)))

    def took(self, base_id: str, seconds: float, *, newest: int, others: int) -> None:
        """A step of so many tokens of either kind took so long."""
        if not others:
            self._learn(self._streams, base_id, seconds)
        elif not newest:
            self._learn(self._token, base_id, seconds / others)
        else:
            self._learn(self._token, base_id, max(0.0, seconds - self._streams.get(base_id, 0.0)) / others)

    def _learn(self, known: dict[str, float], base_id: str, value: float) -> None:
        known[base_id] = value + (1 - SMOOTH) * (known[base_id] - value) if base_id in known else value
