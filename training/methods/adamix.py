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
from torch import Tensor

from registry.adapters.experts import BankAdapter
from registry.base_model.likelihood import logit_slices
from registry.spec import AdapterConfig
from training.hyperparameters import Consistency
from training.tasks.contract import Scored

_CELLS = 2**18  # logits in a chunk, so that it stays in a core's cache


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
        total: Tensor = _Consistent.apply(first.states, second.states, first, mode == "released")  # type: ignore[no-untyped-call]
        return total

    return loss


def bank_record(config: AdapterConfig) -> dict[str, Any]:
    """The fields of a bank's configuration in the record of its merge."""
    return config.model_dump(mode="json", include={"experts", "share"})


class _Consistent(torch.autograd.Function):
    """Cross-entropy and both divergences with their gradients, a chunk of rows at a time.

    Plain tensor operations would need a dozen passes over (tokens, vocabulary), which cost more than the adapter. Here
    each chunk is read while it is in the cache, and only the gradients of the states are stored.
    """

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, scored: Scored, constant_targets: bool) -> Tensor:
        """States (n, ...) of both routes and the first route's targets and weights -> the weighted sum, a scalar."""
        total = first.new_zeros((), dtype=scored.weights.dtype)
        first_gradients: list[Tensor] = []
        second_gradients: list[Tensor] = []
        chunks = [slice(None)] if scored.writer is None else logit_slices(scored.writer, len(first))
        for chunk in chunks:
            rows = Scored(first[chunk], scored.targets[chunk], scored.weights[chunk], scored.writer)
            loss, gradients = _sum_and_gradients(rows, second[chunk], constant_targets=constant_targets)
            total += loss
            first_gradients.append(gradients[0])
            second_gradients.append(gradients[1])
        ctx.save_for_backward(torch.cat(first_gradients), torch.cat(second_gradients))
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of both routes' states."""
        first, second = ctx.saved_tensors
        return (first * factor).to(first.dtype), (second * factor).to(second.dtype), None, None


def _sum_and_gradients(scored: Scored, second: Tensor, *, constant_targets: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The weighted sum over rows, a scalar, and its gradients by the states (rows, ...) of both routes."""
    with torch.enable_grad():
        states = [tensor.detach().requires_grad_() for tensor in (scored.states, second)]
        logits = [scored.logits(tensor) for tensor in states]
    total, gradients = _total_and_gradients(
        logits[0].detach(), logits[1].detach(), scored.targets, scored.weights, constant_targets=constant_targets
    )
    if scored.writer is None:
        return total, gradients
    return total, torch.autograd.grad(logits, states, gradients)


def _total_and_gradients(
    first: Tensor, second: Tensor, targets: Tensor, weights: Tensor, *, constant_targets: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The weighted sum over rows of logits (rows, classes) and its gradients by both, computed in chunks."""
    gradients = torch.empty_like(first), torch.empty_like(second)
    total = first.new_zeros(())
    rows = max(1, _CELLS // first.shape[1])
    for start in range(0, len(first), rows):
        chunk = slice(start, start + rows)
        total += _fill_gradients(
            first[chunk],
            second[chunk],
            targets[chunk],
            weights[chunk],
            constant_targets=constant_targets,
            gradients=(gradients[0][chunk], gradients[1][chunk]),
        )
    return total, gradients


def _fill_gradients(
    first: Tensor,
    second: Tensor,
    targets: Tensor,
    weights: Tensor,
    *,
    constant_targets: bool,
    gradients: tuple[Tensor, Tensor],
) -> Tensor:
    """Write the gradients (rows, classes) of the weighted sum over rows into `gradients`; return the sum, a scalar.

    With a = log p_A, b = log p_B and g = (p_A - p_B) / 2, half the sum of the divergences is g (a - b). Its gradient
    is g to A and -g to B where targets are constant; through the targets come p_A ((a - b) - KL(A || B)) / 2 and
    p_B ((b - a) - KL(B || A)) / 2.
    """
    log_a, log_b = first.log_softmax(-1), second.log_softmax(-1)
    gradient_a, gradient_b = gradients
    target_log_probs = log_a.gather(-1, targets[:, None])
    log_ratio = log_a - log_b
    p_a, p_b = log_a.exp_(), log_b.exp_()
    half_difference = torch.sub(p_a, p_b, out=gradient_b).mul_(0.5)
    losses = (half_difference * log_ratio).sum(-1) - target_log_probs.squeeze(-1)
    total: Tensor = (losses * weights).sum()  # not a matrix product, which autocast would take in bf16
    torch.add(p_a, half_difference, out=gradient_a)
    half_difference.neg_()
    if not constant_targets:
        gradient_a += 0.5 * p_a * (log_ratio - (p_a * log_ratio).sum(-1, keepdim=True))
        gradient_b -= 0.5 * p_b * (log_ratio - (p_b * log_ratio).sum(-1, keepdim=True))
    gradient_a.scatter_add_(-1, targets[:, None], torch.full_like(target_log_probs, -1.0))
    gradient_a *= weights[:, None]
    gradient_b *= weights[:, None]
    return total
