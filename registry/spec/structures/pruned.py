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
    """That entries of an adapter's projections are held at zero, and how they were chosen (SparseAdapter, section 2).

    `sparsity` is the share that is pruned. Of a trained adapter `score` says by what, `scope` whether entries
    were ranked over all projections or within each, `data` which text gave the gradients; of a soup `score` is the
    rule that made one mask of its ingredients'.
    """

    score: PruningScore | MaskRule
    sparsity: float = Field(gt=0, lt=1)
    scope: Literal["global", "layer"] = "global"
    seed: int = Field(default=0, ge=0, lt=2**63)
    masked: int = Field(ge=1, lt=2**48)
    """How many entries are pruned, exactly."""
    data: Digest | None = None
