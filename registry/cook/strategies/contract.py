"""The contract of a strategy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.cook.candidate import Proposal
from registry.cook.job import CookJob
from registry.cook.report import Outcome


@dataclass(frozen=True)
class Strategy:
    """A way to come to candidates.

    `propose(job)` gives candidates, or the outcome of an equal request that is stored already. `passes(passages,
    adapters)` is about how many passes of the base model over a sample it takes; None for one that is never offered as
    the dearer one. With `needs_ingredients` nothing is proposed where the selector abstained.
    """

    propose: Callable[[CookJob], Proposal | Outcome]
    passes: Callable[[int, int], float] | None = None
    needs_ingredients: bool = True
