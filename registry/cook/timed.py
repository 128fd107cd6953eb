"""A timer of the base model's passes in a cook, to report what the cook took and to price other efforts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from registry.spec import Passage, Spent, characters_of


@dataclass
class PassTimer:
    """The `seconds` that scoring took, the `characters` that were scored in them, and when the cook began."""

    seconds: float = 0.0
    characters: int = 0
    began: float = field(default_factory=time.perf_counter)

    def add(self, seconds: float, texts: Sequence[Passage]) -> None:
        """Count texts that were scored, here or in the process that computes gradients."""
        self.seconds += seconds
        self.characters += characters_of(texts)

    def spent(self, sample: Sequence[Passage]) -> Spent:
        """The seconds since this was made; in passes over `sample` too, where anything was scored."""
        elapsed = time.perf_counter() - self.began
        if not self.characters or not sample:
            return Spent(seconds=elapsed)
        forward = self.seconds / self.characters * characters_of(sample)
        return Spent(seconds=elapsed, forward_seconds=forward, passes=elapsed / forward if forward > 0 else None)
