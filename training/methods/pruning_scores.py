"""Scores that say which entries of an adapter's projections to keep, before training (SparseAdapter, section 2.2).

Called by `methods.pruning` alone, which prunes the lowest (docs/explanation/methods.md, "Pruning"). A score is float64
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
from registry.spec import PruningScore

Loss = Callable[[Tensor], Tensor]
"""Rows int64 (batch, width) -> their mean loss, a scalar that can be differentiated."""
Scores = dict[str, Tensor]
NEEDS_GRADIENTS: frozenset[PruningScore] = frozenset({"snip", "grasp"})


def scores_of(
    score: PruningScore, weights: Mapping[str, nn.Parameter], loss: Loss, batches: Sequence[Tensor], *, seed: int
) -> Scores:
    """The score of every entry of `weights`; the higher, the rather it is kept.

    `batches` are rows of training data. Raises InvalidParameter where a gradient is not finite, and where the score
    is 0 for a whole projection, which says nothing of its entries.
    """
    if score == "magnitude":
        return {name: weight.detach().cpu().double().abs() for name, weight in weights.items()}
    if score not in NEEDS_GRADIENTS:
        rng = np.random.Generator(np.random.PCG64(seed))
        return {name: torch.from_numpy(rng.random(tuple(weight.shape))) for name, weight in weights.items()}
    listed = list(weights.values())
    slopes = _gradient(listed, loss, batches)
    if score == "grasp":
        curved = _curved(listed, loss, batches, slopes)
        found = [weight.detach() * part for weight, part in zip(listed, curved, strict=True)]
    else:
        found = [(weight.detach() * slope).abs() for weight, slope in zip(listed, slopes, strict=True)]
    scores = {name: one.cpu() for name, one in zip(weights, found, strict=True)}
    _refuse_nothing(score, scores)
    return scores


def _gradient(weights: Sequence[nn.Parameter], loss: Loss, batches: Sequence[Tensor]) -> list[Tensor]:
    """Gradient of the mean loss over all rows, float64."""
    total = [torch.zeros_like(weight, dtype=torch.float64) for weight in weights]
    rows = sum(len(batch) for batch in batches)
    for batch in batches:
        found = torch.autograd.grad(loss(batch), weights, materialize_grads=True)
        for sum_, slope in zip(total, found, strict=True):
            sum_ += slope.double() * (len(batch) / rows)
    return total


def _curved(
    weights: Sequence[nn.Parameter], loss: Loss, batches: Sequence[Tensor], slopes: Sequence[Tensor]
) -> list[Tensor]:
    """H g of the mean loss over all rows, float64: the gradient of <gradient, g> with g held fixed.

    Attention is computed plainly: its fused kernels have no second derivative.
    """
    total = [torch.zeros_like(weight, dtype=torch.float64) for weight in weights]
    fixed = [slope.to(weight.dtype) for slope, weight in zip(slopes, weights, strict=True)]
    rows = sum(len(batch) for batch in batches)
    with sdpa_kernel(SDPBackend.MATH):
        for batch in batches:
            found = torch.autograd.grad(loss(batch), weights, create_graph=True, materialize_grads=True)
            along = sum(((one * slope).sum() for one, slope in zip(found, fixed, strict=True)), torch.zeros(()))
            for sum_, part in zip(total, torch.autograd.grad(along, weights, materialize_grads=True), strict=True):
                sum_ += part.double() * (len(batch) / rows)
    return total


def _refuse_nothing(score: str, scores: Scores) -> None:
    broken = [name for name, one in scores.items() if not torch.isfinite(one).all()]
    if broken:
        raise InvalidParameter(
            f"The {score} scores of {broken[0]} are not finite{more_problems(len(broken))}: the loss has no gradient "
            "that could be used at this start.",
            param="score",
        )
    empty = [name for name, one in scores.items() if not one.any()]
    if empty:
        raise InvalidParameter(
            f"Score {score!r} is 0 for every entry of {len(empty)} of {len(scores)} projections ({empty[0]} first), "
            "which says nothing of what to keep: it is so where an up-projection, or a LoRA's B, starts at zero. Start "
            "from 'near_identity' or 'linear', a LoRA from 'small_b', or choose 'random', 'magnitude' or "
            "'erdos_renyi'.",
            param="score",
            problems=[f"Every {score} score of {name} is 0." for name in empty[:20]],
        )
