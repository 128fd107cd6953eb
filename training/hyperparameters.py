"""The hyperparameters of a training: of the loop, of pruning, and of the consistency of experts.

They go into the record of an adapter and into checkpoints. Imports no torch.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from registry.spec import Frozen, PruningScore

Schedule = Literal["linear", "cosine"]
TrainingDtype = Literal["float32", "bfloat16"]
Consistency = Literal["released", "paper", "none"]
"""The consistency loss between two passes of a bank (AdaMix, section 3.2): as released, as in the paper, or none."""
SPARSITY = 0.4
"""The default share that is pruned, as in SparseAdapter."""
SHORTEST_BLOCK = 2
"""Tokens of the shortest block: the second is predicted from the first."""


class Hyperparameters(Frozen):
    """The numbers of an optimisation loop.

    A step is one update after `accumulate` forward passes of `batch` blocks each, so `batch * accumulate` blocks. The
    update equals that of one large batch, except that a bank draws its routes for each pass. `warmup` is a share of the
    steps, `evaluations` of validation loss are spread over them. `weight_decay` is AdamW's and for every trained
    tensor, biases and norms too. With `dtype="bfloat16"` forward passes run under torch's autocast; parameters and
    optimiser stay fp32.

    Defaults suit bottleneck adapters on small base models; the papers use 1e-4 and 20 epochs on GPT-2 small.
    """

    steps: int = Field(default=200, ge=1, le=1_000_000)
    batch: int = Field(default=8, ge=1, le=4096)
    accumulate: int = Field(default=1, ge=1, le=4096)
    block: int = Field(default=256, ge=SHORTEST_BLOCK, le=131_072)
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    schedule: Schedule = "linear"
    warmup: float = Field(default=0.05, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    dtype: TrainingDtype = "float32"
    evaluations: int = Field(default=4, ge=1, le=10_000)
    data_seed: int = Field(default=0, ge=0, lt=2**32)

    def learning_rate_at(self, step: int) -> float:
        """Return the rate of step 1 to `steps`: rises over the warm-up, then falls to zero after the last."""
        rising = max(1, round(self.warmup * self.steps))
        if step <= rising:
            return self.learning_rate * step / rising
        if self.schedule == "cosine":
            done = (step - rising) / (self.steps - rising + 1)
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * (self.steps - step + 1) / (self.steps - rising + 1)

    def evaluated_at(self) -> set[int]:
        """Return the steps after which the validation loss is computed, the last among them."""
        return {max(1, round(self.steps * i / self.evaluations)) for i in range(1, self.evaluations + 1)}


class PruningOptions(Frozen):
    """How an adapter is pruned before its training (SparseAdapter, He et al., Findings of EMNLP 2022).

    `sparsity` is the share of the projections' entries to prune, ranked over all of them or within each layer. Scores
    that need a gradient compute it on `batches` batches of the training data. `seed` draws random scores, and those
    batches.
    """

    score: PruningScore = "snip"
    sparsity: float = Field(default=SPARSITY, gt=0, lt=1)
    scope: Literal["global", "layer"] = "global"
    seed: int = Field(default=0, ge=0, lt=2**63)
    batches: int = Field(default=4, ge=1, le=4096)
