"""Tokens, answers and seconds of each adapter's requests, for /metrics. Knows no requests and no tensors.

A metric's labels must be few and its sums may never fall, so at most `MAX_LABELS` adapters have a label: the first that
come, until another has more than twice the tokens of the label with the fewest, which it replaces. Its tokens until
then stay counted under `other`. A replaced label is no longer reported; it resumes from the same sums if its adapter
gets a label again. Everything is therefore counted once, under one label.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

BASE = "base"
"""Label of requests without an adapter."""
OTHER = "other"
"""Label of all adapters together that have none of their own."""
MAX_LABELS = 32
MAX_REMEMBERED = 1024
"""Adapters without a label whose tokens are remembered, those used least recently forgotten."""


@dataclass
class AdapterTotals:
    """The sums of one label; `first_token_seconds` are those of `first_tokens` requests, `seconds` of `answers`."""

    generated_tokens: int = 0
    scored_tokens: int = 0
    """Tokens of texts that were scored or embedded."""
    first_tokens: int = 0
    first_token_seconds: float = 0.0
    answers: int = 0
    seconds: float = 0.0


class AdapterMetrics:
    """The figures by label. The engine's thread counts; any thread may read."""

    def __init__(self, *, labels: int = MAX_LABELS, known: int = MAX_REMEMBERED) -> None:
        self._labels = labels
        self._known = known
        self._lock = threading.Lock()
        self._all = {BASE: AdapterTotals(), OTHER: AdapterTotals()}
        self._own: dict[str, AdapterTotals] = {}
        self._ended: dict[str, AdapterTotals] = {}  # few: a place more than doubles its tokens each time
        self._tokens: dict[str, int] = {}  # of those that have a label, also from before they had it
        self._rest: OrderedDict[str, int] = OrderedDict()  # of others

    def figures(self) -> dict[str, AdapterTotals]:
        """The figures by label, as they stand."""
        with self._lock:
            return {label: replace(one) for label, one in (self._all | self._own).items()}

    def tokens(self, digest: str | None, *, generated: int = 0, scored: int = 0) -> None:
        """Tokens were computed for an adapter (None: for the base model alone)."""
        with self._lock:
            figures = self._of(digest)
            figures.generated_tokens += generated
            figures.scored_tokens += scored
            if digest is not None:
                self._rank(digest, generated + scored)

    def first_token(self, digest: str | None, seconds: float) -> None:
        """The first token of a generation came so long after the request."""
        with self._lock:
            figures = self._of(digest)
            figures.first_tokens += 1
            figures.first_token_seconds += seconds

    def answered(self, digest: str | None, seconds: float) -> None:
        """A request was answered so long after it came."""
        with self._lock:
            figures = self._of(digest)
            figures.answers += 1
            figures.seconds += seconds

    def _of(self, digest: str | None) -> AdapterTotals:
        if digest is None:
            return self._all[BASE]
        if digest not in self._own and len(self._own) < self._labels:
            self._own[digest], self._tokens[digest] = AdapterTotals(), 0
        return self._own.get(digest, self._all[OTHER])

    def _rank(self, digest: str, count: int) -> None:
        """Add to an adapter's tokens; one that has many more than the last of those with a label takes its place."""
        if digest in self._tokens:
            self._tokens[digest] += count
            return
        self._remember(digest, self._rest.get(digest, 0) + count)
        last = min(self._tokens, key=self._tokens.__getitem__)
        if self._rest[digest] > 2 * self._tokens[last]:
            self._ended[last] = self._own.pop(last)
            self._own[digest] = self._ended.pop(digest, AdapterTotals())
            self._tokens[digest] = self._rest.pop(digest)
            self._remember(last, self._tokens.pop(last))

    def _remember(self, digest: str, tokens: int) -> None:
        self._rest[digest] = tokens
        self._rest.move_to_end(digest)
        if len(self._rest) > self._known:
            self._rest.popitem(last=False)
