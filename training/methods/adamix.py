"""The loss that a bank of experts is trained with (AdaMix, Wang et al., EMNLP 2022, sections 3.1 and 3.2).

Called by the trainer for a bank, in place of the task's loss. Every call draws one expert for each projection, for
the whole batch; with consistency it draws a second route and adds how far the two predictions are apart:

    CE(z_A) + 1/2 [KL(z_A || z_B) + KL(z_B || z_A)]

- `paper`: B uses other experts than A everywhere, and gradients go through both sides of both divergences;
- `released`: the paper's code draws the two routes independently, and holds the target of each divergence constant;
- `none`: A alone.

The cross-entropy is always that of A. Validation scores the merge: the bank without a route.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from registry.adapters.experts import BankAdapter
from registry.base_model.likelihood import logit_slices
from registry.spec import AdapterConfig
from training.hyperparameters import Consistency
from training.tasks.contract import Scored


def consistent_loss(
    scored: Callable[[Tensor], Scored], bank: BankAdapter, mode: Consistency
) -> Callable[[Tensor], Tensor]:
    """Return the loss of a batch of rows, a scalar; `scored` runs the base with `bank` attached to it.

    Routes are drawn from torch's global generator, whose state is in the trainer's checkpoints.
    """

    def loss(rows: Tensor) -> Tensor:
        routes = bank.draw()
        with bank.routed(routes):
            first = scored(rows)
        if mode == "none":
            return first.loss()
        with bank.routed(bank.draw(avoiding=routes if mode == "paper" else None)):
            second = scored(rows)
        slices = [slice(None)] if first.writer is None else logit_slices(len(first.states))
        sums = [
            checkpoint(  # logits are computed again for the gradients: those of all rows do not fit into memory
                _weighted_sum,
                Scored(first.states[chunk], first.targets[chunk], first.weights[chunk], first.writer),
                second.states[chunk],
                mode == "released",
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for chunk in slices
        ]
        return torch.stack(sums).sum()

    return loss


def bank_record(config: AdapterConfig) -> dict[str, Any]:
    """The fields of a bank's configuration in the record of its merge."""
    return config.model_dump(mode="json", include={"experts", "share"})


def _weighted_sum(scored: Scored, second: Tensor, constant_targets: bool) -> Tensor:
    """The weighted sum of the losses of rows, a scalar, by the states (rows, ...) of both routes."""
    first_log, second_log = (scored.logits(states).log_softmax(-1) for states in (scored.states, second))
    divergences = _divergence(first_log, second_log, constant_targets) + _divergence(
        second_log, first_log, constant_targets
    )
    losses = F.nll_loss(first_log, scored.targets, reduction="none") + 0.5 * divergences
    return (losses * scored.weights).sum()  # not a matrix product, which autocast would take in bf16


def _divergence(target: Tensor, log_probs: Tensor, is_constant: bool) -> Tensor:
    """KL(target || log_probs) of rows (rows, classes), with a constant target if `is_constant`."""
    target = target.detach() if is_constant else target
    return F.kl_div(log_probs, target, log_target=True, reduction="none").sum(-1)
