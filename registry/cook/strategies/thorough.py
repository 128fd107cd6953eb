"""Strategy `thorough`: more adapters, weighed for longer, and mixtures by the losses of each by itself."""

from __future__ import annotations

from registry.cook.budget import Depth, weighing_passes
from registry.cook.candidate import Proposal
from registry.cook.job import CookJob
from registry.cook.weighing import propose_by_weighing

DEPTH = Depth(members=32, steps=30, most_texts=8, turns=4, alone=8, trials=6)


def propose(job: CookJob) -> Proposal:
    """The weighed soup, those by EM and by greedy search over losses, and the selector's own."""
    return propose_by_weighing(job, DEPTH)


def passes(passages: int, adapters: int) -> float:
    """Passes of the base model over a sample, for these numbers of passages and adapters."""
    return weighing_passes(DEPTH, passages, adapters)
