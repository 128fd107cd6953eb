"""The loss that a bank of experts is trained with (AdaMix, Wang et al., EMNLP 2022, sections 3.1 and 3.2).

Called by the trainer for a bank, in place of the task's loss. Every call draws one expert for each projection, for
the whole batch; with consistency it draws a second route and adds how far the two predictions are apart:

    CE(z_A) + 1/2 [KL(z_A || z_B) + KL(z_B || z_A)]

- `paper`: B takes other experts than A everywhere, and gradients go through both sides of both divergences;
- `released`: the paper's code draws the two routes independently, and holds the target of each divergence constant;
- `none`: A alone.

The cross-entropy is that of A in all of them. What is validated is the merge: the bank without a route.
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

_CELLS = 2**18  # logits at a time: what stays in a core's cache


def consistent_loss(
    scored: Callable[[Tensor], Scored], bank: BankAdapter, mode: Consistency
) -> Callable[[Tensor], Tensor]:
    """The loss of a batch of rows, a scalar; `scored` runs the base with `bank` attached to it.

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
        found: Tensor = _Consistent.apply(first.states, second.states, first, mode == "released")  # type: ignore[no-untyped-call]
        return found

    return loss


def bank_record(config: AdapterConfig) -> dict[str, Any]:
    """What the record of a merge says of its bank; how that was trained is in the record anyway."""
    return config.model_dump(mode="json", include={"experts", "share"})


class _Consistent(torch.autograd.Function):
    """Cross-entropy and both divergences with their gradients, some rows at a time.

    Written out they would be a dozen passes over tensors of (tokens, vocabulary), which cost more than the adapter;
    here each cell is read while it is in the cache, and the gradients of the states are all that is kept.
    """

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, scored: Scored, constant_targets: bool) -> Tensor:
        """States (n, ...) of both routes, and what was `scored` -> the weighted mean over the n, a scalar."""
        total = first.new_zeros((), dtype=scored.weights.dtype)
        found: tuple[list[Tensor], list[Tensor]] = [], []
        parts = [slice(None)] if scored.writer is None else logit_slices(scored.writer, len(first))
        for part in parts:
            some = Scored(first[part], scored.targets[part], scored.weights[part], scored.writer)
            lost, slopes = _sum_and_slopes(some, second[part], constant_targets=constant_targets)
            total += lost
            for slope, kept in zip(slopes, found, strict=True):
                kept.append(slope)
        ctx.save_for_backward(*(torch.cat(kept) for kept in found))
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of both routes' states."""
        first, second = ctx.saved_tensors
        return (first * factor).to(first.dtype), (second * factor).to(second.dtype), None, None


def _sum_and_slopes(scored: Scored, second: Tensor, *, constant_targets: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The weighted sum over some rows, a scalar, and its gradients by the states (rows, ...) of both routes."""
    with torch.enable_grad():
        states = [one.detach().requires_grad_() for one in (scored.states, second)]
        logits = [scored.logits(one) for one in states]
    of_first, of_second = (one.detach() for one in logits)
    total, gradients = _total_and_gradients(
        of_first, of_second, scored.targets, scored.weights, constant_targets=constant_targets
    )
    if scored.writer is None:
        return total, gradients
    return total, torch.autograd.grad(logits, states, gradients)


def _total_and_gradients(
    first: Tensor, second: Tensor, targets: Tensor, weights: Tensor, *, constant_targets: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The weighted sum over rows of logits (rows, classes), and its gradients by both, as many as a cache holds."""
    gradients = torch.empty_like(first), torch.empty_like(second)
    total = first.new_zeros(())
    rows = max(1, _CELLS // first.shape[1])
    for start in range(0, len(first), rows):
        part = slice(start, start + rows)
        total += _part(
            first[part], second[part], targets[part], weights[part], constant_targets=constant_targets,
            gradients=(gradients[0][part], gradients[1][part]),
        )  # fmt: skip
    return total, gradients


def _part(
    first: Tensor, second: Tensor, targets: Tensor, weights: Tensor, *, constant_targets: bool,
    gradients: tuple[Tensor, Tensor],
) -> Tensor:  # fmt: skip
    """The weighted sum over some rows, a scalar, and its `gradients` (rows, classes) filled in.

    With a = log p_A, b = log p_B and g = (p_A - p_B) / 2, half the sum of the divergences is g (a - b). Its gradient
    is g to A and -g to B where targets are constant; through the targets come p_A ((a - b) - KL(A || B)) / 2 and
    p_B ((b - a) - KL(B || A)) / 2.
    """
    log_a, log_b = first.log_softmax(-1), second.log_softmax(-1)
    of_a, of_b = gradients
    of_targets = log_a.gather(-1, targets[:, None])
    apart = log_a - log_b
    p_a, p_b = log_a.exp_(), log_b.exp_()
    half = torch.sub(p_a, p_b, out=of_b).mul_(0.5)
    found = (half * apart).sum(-1) - of_targets.squeeze(-1)
    total: Tensor = (found * weights).sum()  # not a matrix product, which autocast would take in bf16
    torch.add(p_a, half, out=of_a)
    half.neg_()
    if not constant_targets:
        of_a += 0.5 * p_a * (apart - (p_a * apart).sum(-1, keepdim=True))
        of_b -= 0.5 * p_b * (apart - (p_b * apart).sum(-1, keepdim=True))
    of_a.scatter_add_(-1, targets[:, None], torch.full_like(of_targets, -1.0))
    of_a *= weights[:, None]
    of_b *= weights[:, None]
    return total
