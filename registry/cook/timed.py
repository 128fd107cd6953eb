"""A base model whose passes are timed, so that a cook can say what it took and what more would take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from registry.adapters.loadable import LoadableAdapter
from registry.context import BaseModel
from registry.encoders import Encoder
from registry.progress import Progress
from registry.spec import BaseEntry, BaseShape, Passage, PassageScore, Spent, characters_of


@dataclass
class TimedBase:
    """A base model (`registry.context.BaseModel`) that counts the seconds and characters of what it scored."""

    base: BaseModel
    seconds: float = 0.0
    characters: int = 0
    began: float = field(default_factory=time.perf_counter)

    @property
    def entry(self) -> BaseEntry:
        """Its entry of the allowlist."""
        return self.base.entry

    @property
    def shape(self) -> BaseShape:
        """Its shape."""
        return self.base.shape

    @property
    def bos(self) -> str | None:
        """The text of its BOS token."""
        return self.base.bos

    def encoders(self) -> Mapping[str, Encoder]:
        """Its encoders by digest."""
        return self.base.encoders()

    def score(
        self, texts: Sequence[Passage], adapter: LoadableAdapter | None, *, progress: Progress
    ) -> Sequence[PassageScore]:
        """Log-likelihoods of texts, timed."""
        began = time.perf_counter()
        scores = self.base.score(texts, adapter, progress=progress)
        self.add(time.perf_counter() - began, texts)
        return scores

    def add(self, seconds: float, texts: Sequence[Passage]) -> None:
        """Count texts that were scored elsewhere, such as in the process that computes gradients."""
        self.seconds += seconds
        self.characters += characters_of(texts)

    def spent(self, sample: Sequence[Passage]) -> Spent:
        """The seconds since this was made; in passes over `sample` too, where anything was scored."""
        elapsed = time.perf_counter() - self.began
        if not self.characters or not sample:
            return Spent(seconds=elapsed)
        forward = self.seconds / self.characters * characters_of(sample)
        return Spent(seconds=elapsed, forward_seconds=forward, passes=elapsed / forward if forward > 0 else None)
