"""Fisher merging (Matena and Raffel, NeurIPS 2022, https://arxiv.org/abs/2111.09832): the more sure counts the more.

theta = sum_i w_i F_i theta_i / sum_i w_i F_i for every value, where F_i is its diagonal Fisher information: how much
the ingredient's own predictions, on the sample it was pushed with, change with it. Where no ingredient has any (a
neuron that never fires), the value is the average. F_i is computed once, as an expectation over one token, and read
from a blob that the recipe names: what is left to do is element by element, in double precision, cast once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from registry.adapters.weights import DTYPES, scale_output
from registry.mixing import average, entrywise
from registry.mixing.cast import cast_finite
from registry.mixing.compat import SoupIngredient, by_digest, not_joinable_reasons, statistic_reasons
from registry.spec import AverageMixing, FisherMixing


def check(parts: Sequence[SoupIngredient], mixing: FisherMixing) -> list[str]:
    """Every reason why these cannot be mixed so; empty when they can. No tensor is read."""
    reasons = entrywise.check(parts, mixing) or not_joinable_reasons(parts, "A Fisher average")
    return reasons + (statistic_reasons(parts, "a Fisher average") if len(parts) > 1 else [])


def mix(parts: Sequence[SoupIngredient], mixing: FisherMixing) -> dict[str, Tensor]:
    """The soup's tensors in the ingredients' dtype; each is loaded once, one at a time.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or the soup leaves the dtype's range.
    """
    if len(parts) == 1:
        return average.mix(parts, AverageMixing(scale=mixing.scale))
    sums: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    for part in by_digest(parts):
        weight, known = float(part.weight), part.measured()
        for name, tensor in part.load().items():
            value, share = tensor.double(), weight * known[name].double()
            own = share * value, share, weight * value
            sums[name] = own if name not in sums else _added(sums[name], own)
    found = {
        name: torch.where(shares > 0, weighed / torch.where(shares > 0, shares, 1.0), plain)
        for name, (weighed, shares, plain) in sums.items()
    }
    found = {name: tensor.to(torch.float32) for name, tensor in found.items()}
    if mixing.scale != "1":
        found = scale_output(found, parts[0].config, float(mixing.scale))
    return cast_finite(found, DTYPES[average.result_dtype(parts)])


def _added(
    one: tuple[Tensor, Tensor, Tensor], other: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]
