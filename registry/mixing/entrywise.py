"""Mix the entries of projections by a rule, and average everything else.

`ties`, `dare` and `slerp` are such rules; biases, LayerNorms, heads and prefixes are averaged. In fp32, entry by entry
in the order of the ingredients' digests: the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from registry.adapters.masks import projection_names
from registry.mixing import average
from registry.mixing.compat import (
    SoupIngredient,
    average_reasons,
    by_digest,
    init_reasons,
    layer_reasons,
    structure_reasons,
)
from registry.spec import (
    AverageMixing,
    DareMixing,
    FisherMixing,
    RegMeanMixing,
    SlerpMixing,
    TaskArithmeticMixing,
    TiesMixing,
)
from registry.tensor_file import canonical_order

Rule = Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
"""(values of a projection in each ingredient, fp32; the ingredients' weights) -> the soup's values."""
Entrywise = TiesMixing | DareMixing | SlerpMixing


def check(
    ingredients: Sequence[SoupIngredient], mixing: Entrywise | TaskArithmeticMixing | FisherMixing | RegMeanMixing
) -> list[str]:
    """Every reason why these cannot be mixed entry by entry; empty when they can. No tensor is read."""
    reasons = structure_reasons([replace(ingredient, config=ingredient.config.dense()) for ingredient in ingredients])
    pruned = [ingredient.ref for ingredient in ingredients if ingredient.config.prunings()]
    if pruned:
        reasons.append(f"{pruned[0]} is pruned, and '{mixing.method}' keeps no mask: mix by 'average' or 'concat'.")
    without = [
        ingredient
        for ingredient in ingredients
        if not ingredient.config.prunable() and ingredient.config.merged is None
    ]
    if without and not reasons:
        reasons.append(f"{without[0].described}, which has no projections to mix.")
    reasons += average_reasons(ingredients, mixing.scale) + layer_reasons(ingredients)
    return reasons if mixing.assume_same_init else reasons + init_reasons(ingredients)


def mix_entries(ingredients: Sequence[SoupIngredient], mixing: Entrywise, rule: Rule) -> dict[str, Tensor]:
    """The tensors in the ingredients' dtype; one ingredient alone is averaged. All are in memory at once.

    `rule` is called with the ingredients in the order of their digests, projection after projection in canonical
    order. Raises InvalidRecipe where an ingredient holds NaN or infinity, or the soup leaves the dtype's range.
    """
    if len(ingredients) == 1:
        return average.mix(ingredients, AverageMixing(scale=mixing.scale))
    ordered = by_digest(ingredients)
    loaded = [ingredient.load() for ingredient in ordered]
    weights = [torch.tensor(float(ingredient.weight), dtype=torch.float32) for ingredient in ordered]
    by_rule = set(projection_names(ordered[0].config, loaded[0]))
    soup = {}
    for name in canonical_order(loaded[0]):
        values = [tensors[name].to(torch.float32) for tensors in loaded]
        soup[name] = rule(values, weights) if name in by_rule else weighted_sum(values, weights)
    return average.scaled(soup, ordered, mixing.scale)


def weighted_sum(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """sum w_i v_i, a multiplication and an addition each."""
    total = weights[0] * values[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total + weight * value
    return total
