"""Fisher merging (Matena and Raffel, NeurIPS 2022, https://arxiv.org/abs/2111.09832): weigh values by their Fisher.

theta = sum_i w_i F_i theta_i / sum_i w_i F_i for every value, where F_i is its diagonal Fisher information: the
sensitivity of the ingredient's own predictions to it, on the sample it was pushed with. If it is zero for all
ingredients (a neuron that never fires), the value is the average. F_i is computed once, as an expectation over one
token, and read from a blob that the recipe names. The computation here is element by element, in double precision, with
one cast at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from registry.mixing import average, entrywise
from registry.mixing.compat import SoupIngredient, by_digest, not_joinable_reasons, statistic_reasons
from registry.mixing.tensors import add_to
from registry.spec import AverageMixing, FisherMixing


def check(ingredients: Sequence[SoupIngredient], mixing: FisherMixing) -> list[str]:
    """Every reason why these have no Fisher average; empty when they have one. No tensor is read."""
    reasons = entrywise.check(ingredients, mixing) or not_joinable_reasons(ingredients, "A Fisher average")
    return reasons + (statistic_reasons(ingredients, "a Fisher average") if len(ingredients) > 1 else [])


def mix(ingredients: Sequence[SoupIngredient], mixing: FisherMixing) -> dict[str, Tensor]:
    """The soup's tensors in the ingredients' dtype; each is loaded once, one at a time.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or the soup leaves the dtype's range.
    """
    if len(ingredients) == 1:
        return average.mix(ingredients, AverageMixing(scale=mixing.scale))
    weighted: dict[str, Tensor] = {}  # sum_i w_i F_i theta_i
    shares: dict[str, Tensor] = {}  # sum_i w_i F_i
    plain: dict[str, Tensor] = {}  # sum_i w_i theta_i
    for ingredient in by_digest(ingredients):
        weight, fisher = float(ingredient.weight), ingredient.load_statistic()
        for name, tensor in ingredient.load().items():
            value, share = tensor.double(), weight * fisher[name].double()
            add_to(weighted, name, share * value)
            add_to(shares, name, share)
            add_to(plain, name, weight * value)
    soup = {
        name: torch.where(share > 0, weighted[name] / torch.where(share > 0, share, 1.0), plain[name]).float()
        for name, share in shares.items()
    }
    return average.scaled(soup, ingredients, mixing.scale)
