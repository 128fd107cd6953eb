"""What mixing methods have in common that mix the entries of projections, and average everything else.

`ties`, `dare` and `slerp` are rules of what becomes of one projection's values; biases, LayerNorms, heads and prefixes
are averaged. In fp32, entry by entry in the order of the ingredients' digests: the same bits on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from registry.adapters.loadable import Tensors
from registry.adapters.masks import projections
from registry.adapters.weights import DTYPES, scale_output
from registry.mixing import average
from registry.mixing.cast import cast_finite
from registry.mixing.compat import (
    SoupIngredient,
    average_reasons,
    by_digest,
    init_reasons,
    layer_reasons,
    structure_reasons,
)
from registry.spec import (
    AdapterConfig,
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
"""(values of each ingredient, fp32, its weight) -> those of the soup."""
Entrywise = TiesMixing | DareMixing | SlerpMixing


def check(
    parts: Sequence[SoupIngredient], mixing: Entrywise | TaskArithmeticMixing | FisherMixing | RegMeanMixing
) -> list[str]:
    """Every reason why these cannot be mixed so; empty when they can. No tensor is read."""
    reasons = structure_reasons([replace(part, config=part.config.dense()) for part in parts])
    pruned = [part.ref for part in parts if part.config.pruned_parts()]
    if pruned:
        reasons.append(f"{pruned[0]} is pruned, and '{mixing.method}' keeps no mask: mix by 'average' or 'concat'.")
    without = [part for part in parts if not part.config.prunable() and part.config.merged is None]
    if without and not reasons:
        reasons.append(f"{without[0].ref} is a {without[0].config.described}, which has no projections to mix.")
    reasons += average_reasons(parts, mixing.scale) + layer_reasons(parts)
    return reasons if mixing.assume_same_init else reasons + init_reasons(parts)


def result(parts: Sequence[SoupIngredient], _mixing: Entrywise) -> AdapterConfig:
    """The soup's structure: that of each ingredient."""
    return parts[0].config


def mixed(
    parts: Sequence[SoupIngredient], mixing: Entrywise, rule: Callable[[Sequence[SoupIngredient]], Rule]
) -> dict[str, Tensor]:
    """The tensors in the ingredients' dtype; one ingredient is as it is. All are in memory at once.

    `rule` makes the rule for ingredients in the order in which it gets their values, projection after projection in
    canonical order. Raises InvalidRecipe where an ingredient holds NaN or infinity, or the soup leaves the dtype's
    range.
    """
    if len(parts) == 1:
        return average.mix(parts, AverageMixing(scale=mixing.scale))
    ordered = by_digest(parts)
    loaded: list[Tensors] = [part.load() for part in ordered]
    weights = [torch.tensor(float(part.weight), dtype=torch.float32) for part in ordered]
    entries = rule(ordered)
    by_rule = {name for names in projections(ordered[0].config, loaded[0]).values() for name in names}
    total = {
        name: (entries if name in by_rule else weighted_sum)([one[name].to(torch.float32) for one in loaded], weights)
        for name in canonical_order(loaded[0])
    }
    if mixing.scale != "1":
        total = scale_output(total, ordered[0].config, float(mixing.scale))
    return cast_finite(total, DTYPES[average.result_dtype(parts)])


def weighted_sum(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """sum w_i v_i, a multiplication and an addition each."""
    found = weights[0] * values[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        found = found + weight * value
    return found
