"""Strategy `quick`: five adapters at most, weighed for a few steps."""

from __future__ import annotations

from registry.cook.budget import Depth, weighing_passes
from registry.cook.candidate import Proposal
from registry.cook.job import CookJob
from registry.cook.weighing import propose_by_weighing

DEPTH = Depth(members=5, steps=12, most_texts=4, turns=2, alone=0, trials=4)


def propose(job: CookJob) -> Proposal:
    """The weighed soup and the selector's own."""
    return propose_by_weighing(job, DEPTH)


def passes(passages: int, adapters: int) -> float:
    """Passes of the base model over a sample, for these numbers of passages and adapters."""
    return weighing_passes(DEPTH, passages, adapters)
