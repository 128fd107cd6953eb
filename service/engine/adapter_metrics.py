"""Tokens, answers and seconds of each adapter's requests, for /metrics. Knows no requests and no tensors.

A metric's labels must be few, and its sums may never decrease. So at most `MAX_LABELS` adapters have a label, at first
the earliest ones. An adapter with more than twice the tokens of the label with the fewest replaces that label. Its
tokens until then stay counted under `other`. A replaced label is no longer reported; it resumes from the same sums if
its adapter gets a label again. Everything is therefore counted once, under one label.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

BASE = "base"
"""Label of requests without an adapter."""
OTHER = "other"
"""Label of all adapters without a label."""
MAX_LABELS = 32
MAX_REMEMBERED = 1024
"""Adapters without a label whose tokens are counted, to see which should get one; least recently used ones drop out."""


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

    def __init__(self, *, labels: int = MAX_LABELS, remembered: int = MAX_REMEMBERED) -> None:
        self._max_labels = labels
        self._max_remembered = remembered
        self._lock = threading.Lock()
        self._fixed = {BASE: AdapterTotals(), OTHER: AdapterTotals()}
        self._labelled: dict[str, AdapterTotals] = {}
        self._replaced: dict[str, AdapterTotals] = {}  # few: a successor has more than twice the tokens
        self._tokens: dict[str, int] = {}  # of labelled adapters, also from before they had a label
        self._unlabelled_tokens: OrderedDict[str, int] = OrderedDict()

    def totals(self) -> dict[str, AdapterTotals]:
        """A copy of the sums by label."""
        with self._lock:
            return {label: replace(totals) for label, totals in (self._fixed | self._labelled).items()}

    def add_tokens(self, digest: str | None, *, generated: int = 0, scored: int = 0) -> None:
        """Count tokens that were computed for an adapter (None: for the base model alone)."""
        with self._lock:
            totals = self._totals_of(digest)
            totals.generated_tokens += generated
            totals.scored_tokens += scored
            if digest is not None:
                self._rank(digest, generated + scored)

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
        if digest is None:
            return self._fixed[BASE]
        if digest not in self._labelled and len(self._labelled) < self._max_labels:
            self._labelled[digest], self._tokens[digest] = AdapterTotals(), 0
        return self._labelled.get(digest, self._fixed[OTHER])

    def _rank(self, digest: str, count: int) -> None:
        """Add to an adapter's tokens; if they are more than twice the fewest of a labelled one, it takes that label."""
        if digest in self._tokens:
            self._tokens[digest] += count
            return
        self._remember(digest, self._unlabelled_tokens.get(digest, 0) + count)
        fewest = min(self._tokens, key=self._tokens.__getitem__)
        if self._unlabelled_tokens[digest] > 2 * self._tokens[fewest]:
            self._replaced[fewest] = self._labelled.pop(fewest)
            self._labelled[digest] = self._replaced.pop(digest, AdapterTotals())
            self._tokens[digest] = self._unlabelled_tokens.pop(digest)
            self._remember(fewest, self._tokens.pop(fewest))

    def _remember(self, digest: str, tokens: int) -> None:
        self._unlabelled_tokens[digest] = tokens
        self._unlabelled_tokens.move_to_end(digest)
        if len(self._unlabelled_tokens) > self._max_remembered:
            self._unlabelled_tokens.popitem(last=False)
