"""What each adapter's requests took, for /metrics: tokens, answers, seconds. Knows no requests and no tensors.

A metric's labels must be few and its sums may never fall, so at most `LABELS` adapters have a label of their own: the
first that come, until another has more than twice the tokens of the one with the fewest, whose place it takes. What it
did before stays counted under `other`. The label that ends is shown no more and counted nowhere else; it goes on from
the same sums if its adapter takes a place again. So everything is counted under one label, once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

BASE = "base"
"""Label of requests without an adapter."""
OTHER = "other"
"""Label of all adapters together that have none of their own."""
LABELS = 32
KNOWN = 1024
"""Adapters without a label whose tokens are remembered, those used least recently forgotten."""


@dataclass
class Figures:
    """The sums of one label; `first_token_seconds` are those of `first_tokens` requests, `seconds` of `answers`."""

    generated_tokens: int = 0
    scored_tokens: int = 0
    """Tokens of texts that were scored or embedded."""
    first_tokens: int = 0
    first_token_seconds: float = 0.0
    answers: int = 0
    seconds: float = 0.0


class Tally:
    """The figures by label. The engine's thread counts; any thread may read."""

    def __init__(self, *, labels: int = LABELS, known: int = KNOWN) -> None:
        self._labels = labels
        self._known = known
        self._lock = threading.Lock()
        self._all = {BASE: Figures(), OTHER: Figures()}
        self._own: dict[str, Figures] = {}
        self._ended: dict[str, Figures] = {}  # few: a place more than doubles its tokens each time
        self._tokens: dict[str, int] = {}  # of those that have a label, also from before they had it
        self._rest: OrderedDict[str, int] = OrderedDict()  # of others

    def figures(self) -> dict[str, Figures]:
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

    def _of(self, digest: str | None) -> Figures:
        if digest is None:
            return self._all[BASE]
        if digest not in self._own and len(self._own) < self._labels:
            self._own[digest], self._tokens[digest] = Figures(), 0
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
            self._own[digest] = self._ended.pop(digest, Figures())
            self._tokens[digest] = self._rest.pop(digest)
            self._remember(last, self._tokens.pop(last))

    def _remember(self, digest: str, tokens: int) -> None:
        self._rest[digest] = tokens
        self._rest.move_to_end(digest)
        if len(self._rest) > self._known:
            self._rest.popitem(last=False)
