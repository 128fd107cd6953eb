"""The record of an adapter's pruning in its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from registry.names import Digest
from registry.spec.frozen import Frozen

PruningScore = Literal["random", "magnitude", "erdos_renyi", "snip", "grasp"]
SCORING_PASSES: Mapping[PruningScore, int] = {"snip": 1, "grasp": 2}
"""Backward passes over training text that a score takes; the others take none."""
MaskRule = Literal["union", "intersect", "first", "reprune"]


class Pruned(Frozen):
    """The pruning of an adapter: entries of its projections fixed at zero, and how they were chosen (SparseAdapter,
    section 2).

    `sparsity` is the share of pruned entries. For a trained adapter, `score` is the criterion, `scope` the projections
    over which entries were ranked, and `data` the text for the gradients. For a soup, `score` is the rule that combined
    the masks of its ingredients.
    """

    score: PruningScore | MaskRule
    sparsity: float = Field(gt=0, lt=1)
    scope: Literal["global", "layer"] = "global"
    seed: int = Field(default=0, ge=0, lt=2**63)
    masked: int = Field(ge=1, lt=2**48)
    """The exact number of pruned entries."""
    data: Digest | None = None
