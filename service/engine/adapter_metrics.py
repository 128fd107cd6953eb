"""Tokens, answers and seconds of each adapter's requests, for /metrics. Knows no requests and no tensors.

A metric's labels must be few, and its sums may never decrease. So the first `MAX_LABELS` adapters have a label of their
own, and all further ones share `other`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

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
    """The sums by label. The engine's thread counts; any thread may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = {BASE: AdapterTotals(), OTHER: AdapterTotals()}

    def totals(self) -> dict[str, AdapterTotals]:
        """A copy of the sums by label."""
        with self._lock:
            return {label: replace(totals) for label, totals in self._totals.items()}

    def add_tokens(self, digest: str | None, *, generated: int = 0, scored: int = 0) -> None:
        """Count tokens that were computed for an adapter (None: for the base model alone)."""
        with self._lock:
            totals = self._totals_of(digest)
            totals.generated_tokens += generated
            totals.scored_tokens += scored

    def add_first_token(self, digest: str | None, seconds: float) -> None:
        """Count the first token of a generation, `seconds` after its request."""
        with self._lock:
            totals = self._totals_of(digest)
            totals.first_tokens += 1
            totals.first_token_seconds += seconds

    def add_answer(self, digest: str | None, seconds: float) -> None:
        """Count an answer, `seconds` after its request."""
        with self._lock:
            totals = self._totals_of(digest)
            totals.answers += 1
            totals.seconds += seconds

    def _totals_of(self, digest: str | None) -> AdapterTotals:
        label = digest or BASE
        if label not in self._totals and len(self._totals) == MAX_LABELS + 2:
            label = OTHER
        return self._totals.setdefault(label, AdapterTotals())
