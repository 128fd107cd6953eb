"""How many prefill tokens a step may take, so that decoding streams get their next token in time."""

from __future__ import annotations

from collections.abc import Iterable

from service.engine.fairness import RecentKeys

MIN_TOKENS = 16
"""Prefill tokens that a step always takes: without them, prompts and texts would starve beside streams."""
UNMEASURED_SHARE = 4
"""Divides the maximum until the first measurement."""
GAP_SECONDS = 0.2
"""Step time that is always allowed if all work is of keys that see the same namespaces.

It costs their streams evenness only: their prompts are done sooner, and the fixed cost of a step is paid less often.
"""
SMOOTHING = 0.2
DECODE_STEPS = 8
"""While several keys send requests, a step without streams takes as long as this many decode steps: a request of
another key may arrive while it runs."""
PROBE_INTERVAL = 64
"""One step in this many has decode tokens only, to measure their time."""


class StepTimes:
    """Measured seconds of decode steps and of one prefill token, by base model, and the budgets that follow from them.

    A step that decodes takes at most twice as long as one that only decodes, or `GAP_SECONDS` if all work is for keys
    that see the same namespaces. A step between decode steps of other base models takes at most as long as those. A
    step without streams is kept short, too, while there are several `recent_keys`.
    """

    def __init__(self) -> None:
        self.recent_keys = RecentKeys()
        self._step_count: dict[str, int] = {}
        self._decode_seconds: dict[str, float] = {}  # of a step with decode tokens only
        self._token_seconds: dict[str, float] = {}  # of one prefill token

    def beside_decodes(self, base_id: str, limit: int, *, same_namespaces: bool = False) -> int:
        """Prefill tokens, at most `limit`, that the next step of a base model may take beside its decode tokens.

        `same_namespaces`: all work is generations of this base model, for keys that see the same namespaces. The first
        step, and one in `PROBE_INTERVAL`, gets none, to measure decoding alone.
        """
        self._step_count[base_id] = self._step_count.get(base_id, -1) + 1
        if self._step_count[base_id] % PROBE_INTERVAL == 0:
            return 0
        budget = self._tokens_per_decode_step(base_id, base_id, limit)
        decode, token = self._decode_seconds.get(base_id), self._token_seconds.get(base_id)
        if not same_namespaces or decode is None or not token:
            return budget
        return max(budget, min(limit, int((GAP_SECONDS - decode) / token)))

    def between_decodes(self, base_id: str, decoding: Iterable[str], limit: int) -> int:
        """Prefill tokens, at most `limit`, of a step of a base model without streams while others are `decoding`.

        Base models take turns, so the step takes no longer than a decode step of each of those. While several keys
        send requests, it takes no longer than `DECODE_STEPS` of its own base model.
        """
        decode, token = self._decode_seconds.get(base_id), self._token_seconds.get(base_id)
        if decode is not None and token and self.recent_keys.has_several():
            limit = min(limit, max(MIN_TOKENS, int(DECODE_STEPS * decode / token)))
        return min((self._tokens_per_decode_step(other_id, base_id, limit) for other_id in decoding), default=limit)

    def _tokens_per_decode_step(self, decoding: str, base_id: str, limit: int) -> int:
        """Prefill tokens of `base_id` that take as long as a decode step of the base model `decoding`."""
        decode, token = self._decode_seconds.get(decoding), self._token_seconds.get(base_id)
        if decode is None or not token:
            return max(MIN_TOKENS, limit // UNMEASURED_SHARE)
        return max(MIN_TOKENS, min(limit, int(decode / token)))

    def record(self, base_id: str, seconds: float, *, decodes: int, prefills: int) -> None:
        """Learn from a step with these numbers of decode and prefill tokens that took `seconds`."""
        if not prefills:
            self._smooth(self._decode_seconds, base_id, seconds)
        elif not decodes:
            self._smooth(self._token_seconds, base_id, seconds / prefills)
        else:
            seconds = max(0.0, seconds - self._decode_seconds.get(base_id, 0.0))
            self._smooth(self._token_seconds, base_id, seconds / prefills)

    def _smooth(self, averages: dict[str, float], base_id: str, value: float) -> None:
        averages[base_id] = value + (1 - SMOOTHING) * (averages.get(base_id, value) - value)
