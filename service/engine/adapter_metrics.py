"""Tokens, answers and seconds of each adapter's requests, for /metrics: sums over the requests that have ended.

A metric's labels must be few, and its sums may never decrease. So the first `MAX_LABELS` adapters have a label of their
own, and all further ones share `other`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from service.engine.request import Request, RequestTimeline, ScoreRequest

BASE = "base"
"""Label of requests without an adapter."""
OTHER = "other"
"""Label of all adapters without a label."""
MAX_LABELS = 256


@dataclass
class AdapterTotals:
    """Sums of one label: `first_token_seconds` over `first_tokens` requests, `seconds` over `answers`."""

    generated_tokens: int = 0
    scored_tokens: int = 0
    """Tokens of texts that were scored or embedded."""
    first_tokens: int = 0
    first_token_seconds: float = 0.0
    answers: int = 0
    seconds: float = 0.0


class AdapterMetrics:
    """The sums by label; threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = {BASE: AdapterTotals(), OTHER: AdapterTotals()}

    def totals(self) -> dict[str, AdapterTotals]:
        """A copy of the sums by label."""
        with self._lock:
            return {label: replace(totals) for label, totals in self._totals.items()}

    def add(self, request: Request, timeline: RequestTimeline) -> None:
        """Count a request that has ended; one that failed or was cancelled counts by its tokens alone."""
        with self._lock:
            totals = self._totals_of(timeline.digest)
            totals.generated_tokens += timeline.generated_tokens
            if isinstance(request, ScoreRequest):
                totals.scored_tokens += timeline.prompt_tokens
            if timeline.first_token_at is not None:
                totals.first_tokens += 1
                totals.first_token_seconds += timeline.first_token_at - timeline.arrived_at
            if timeline.status == "finished":
                totals.answers += 1
                totals.seconds += timeline.ended_at - timeline.arrived_at

    def _totals_of(self, digest: str | None) -> AdapterTotals:
        label = digest or BASE
        if label not in self._totals and len(self._totals) == MAX_LABELS + 2:
            label = OTHER
        return self._totals.setdefault(label, AdapterTotals())
