"""What a training may have beside its recipe: pruning at the start, and how the experts of a bank agree. Torch-free.

Read by the trainer, by `methods.pruning` and `methods.adamix`, and by whoever describes a training before torch is
imported.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from registry.spec import Frozen, PruningScore

Consistency = Literal["released", "paper", "none"]
"""How two passes of a bank are brought to agree (AdaMix, section 3.2): as AdaMix's code does, as its paper says, or
not at all."""


class PruningOptions(Frozen):
    """How an adapter is pruned before its training (SparseAdapter, section 2).

    `sparsity` is the share of the projections' entries that is pruned, ranked over all of them or within each layer;
    scores that need a gradient take it on `batches` batches of the training data. `seed` draws random scores,
    and those batches.
    """

    score: PruningScore = "snip"
    sparsity: float = Field(default=0.4, gt=0, lt=1)
    scope: Literal["global", "layer"] = "global"
    seed: int = Field(default=0, ge=0, lt=2**63)
    batches: int = Field(default=4, ge=1, le=4096)
