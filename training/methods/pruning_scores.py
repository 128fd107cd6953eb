"""Scores of the entries of an adapter's projections, for pruning before training (SparseAdapter, section 2.2).

Called by `methods.pruning`, which prunes the lowest (docs/explanation/methods.md#which-entries-go). A score is float64
of its weight's shape on the CPU.

- `random`: U(0, 1), drawn with NumPy's PCG64; also what Erdos-Renyi ranks by within a projection;
- `magnitude`: |w|;
- `snip` (Lee et al., ICLR 2019): |w g|, g the gradient of the loss; without the absolute value, as SparseAdapter
  prints it, it would not be what its code does;
- `grasp` (Wang et al., ICLR 2020): w (H g), H the Hessian, by double backward. Its normalisation, one positive
  constant for all, changes no order and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from registry.errors import InvalidParameter, more_problems
from registry.spec import SCORING_PASSES, PruningScore

Loss = Callable[[Tensor], Tensor]
"""Rows int64 (batch, width) -> their mean loss, a scalar that can be differentiated."""
Scores = dict[str, Tensor]


def scores_of(
    score: PruningScore, weights: Mapping[str, nn.Parameter], loss: Loss, batches: Sequence[Tensor], *, seed: int
) -> Scores:
    """Score each entry of `weights`; the lowest scores are pruned.

    `batches` are rows of training data. Raises InvalidParameter if a gradient is not finite or the scores of a whole
    projection are 0.
    """
    if score == "magnitude":
        return {name: weight.detach().cpu().double().abs() for name, weight in weights.items()}
    if score not in SCORING_PASSES:
        rng = np.random.Generator(np.random.PCG64(seed))
        return {name: torch.from_numpy(rng.random(tuple(weight.shape))) for name, weight in weights.items()}
    parameters = list(weights.values())
    gradients = _gradient(parameters, loss, batches)
    if score == "grasp":
        products = _hessian_products(parameters, loss, batches, gradients)
        scored = [weight.detach() * product for weight, product in zip(parameters, products, strict=True)]
    else:
        scored = [(weight.detach() * gradient).abs() for weight, gradient in zip(parameters, gradients, strict=True)]
    scores = {name: values.cpu() for name, values in zip(weights, scored, strict=True)}
    _check_scores(score, scores)
    return scores


def _gradient(weights: Sequence[nn.Parameter], loss: Loss, batches: Sequence[Tensor]) -> list[Tensor]:
    """Gradient of the mean loss over all rows, float64."""
    total = [torch.zeros_like(weight, dtype=torch.float64) for weight in weights]
    rows = sum(len(batch) for batch in batches)
    for batch in batches:
        gradients = torch.autograd.grad(loss(batch), weights, materialize_grads=True)
        for sum_, gradient in zip(total, gradients, strict=True):
            sum_ += gradient.double() * (len(batch) / rows)
    return total


def _hessian_products(
    weights: Sequence[nn.Parameter], loss: Loss, batches: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor]:
    """H g of the mean loss over all rows, float64: the gradient of <gradient, g> with constant g.

    Attention runs unfused: its fused kernels have no second derivative.
    """
    total = [torch.zeros_like(weight, dtype=torch.float64) for weight in weights]
    constant = [gradient.to(weight.dtype) for gradient, weight in zip(gradients, weights, strict=True)]
    rows = sum(len(batch) for batch in batches)
    with sdpa_kernel(SDPBackend.MATH):
        for batch in batches:
            live = torch.autograd.grad(loss(batch), weights, create_graph=True, materialize_grads=True)
            inner = sum(((a * b).sum() for a, b in zip(live, constant, strict=True)), torch.zeros(()))
            for sum_, product in zip(total, torch.autograd.grad(inner, weights, materialize_grads=True), strict=True):
                sum_ += product.double() * (len(batch) / rows)
    return total


def _check_scores(score: str, scores: Scores) -> None:
    broken = [name for name, values in scores.items() if not torch.isfinite(values).all()]
    if broken:
        raise InvalidParameter(
            f"The {score} scores of {broken[0]} are not finite{more_problems(len(broken))}: the loss has no gradient "
            "that could be used at this start.",
            param="score",
        )
    empty = [name for name, values in scores.items() if not values.any()]
    if empty:
        raise InvalidParameter(
            f"Score {score!r} is 0 for every entry of {len(empty)} of {len(scores)} projections ({empty[0]} first), so "
            "it cannot rank them. The cause is an up-projection, or a LoRA's B, that starts at zero. Start "
            "from 'near_identity' or 'linear', a LoRA from 'small_b', or choose 'random', 'magnitude' or "
            "'erdos_renyi'.",
            param="score",
            problems=[f"Every {score} score of {name} is 0." for name in empty[:20]],
        )
