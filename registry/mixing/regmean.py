"""RegMean (Jin et al., ICLR 2023, https://arxiv.org/abs/2212.09849): outputs as close as possible to the ingredients'.

Each projection W with inputs x minimises sum_i w_i E_i |W x - W_i x|^2, each ingredient over the inputs of its own
projection on the sample it was pushed with:

    W^T = (sum_i w_i G_i)^-1 sum_i w_i G_i W_i^T,   G_i = E_i[x x^T]

with everything off the diagonal of G_i multiplied by `off_diagonal`, as in the paper. A millionth of the mean diagonal
is added to G_i, so that an input that no ingredient uses gets the average. Everything but projections is averaged. A
LoRA's update s B A is such a matrix itself, and the solution for updates has all ranks side by side:

    B = [s_i B_i],   A_i' = w_i A_i G_i (sum_j w_j G_j)^-1

G_i is computed once and read from a blob that the recipe names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from registry.adapters import join_adapters
from registry.adapters.lora import LORA_A, PREFIX
from registry.adapters.masks import projection_names
from registry.adapters.mixture import constant_factor
from registry.adapters.moments import unpacked
from registry.mixing import average, concat, entrywise
from registry.mixing.compat import SoupIngredient, by_digest, layer_reasons, not_joinable_reasons, statistic_reasons
from registry.mixing.tensors import cast_finite
from registry.spec import AdapterConfig, AverageMixing, LoraConfig, RegMeanMixing
from registry.tensor_file import canonical_order

RIDGE = 1e-6
"""Share of the mean diagonal that is added to every G_i."""


def check(ingredients: Sequence[SoupIngredient], mixing: RegMeanMixing) -> list[str]:
    """Every reason why these cannot be mixed by RegMean; empty when they can. No tensor is read."""
    if ingredients[0].config.is_update:
        reasons = concat.check(ingredients, mixing) + layer_reasons(ingredients) or _module_reasons(ingredients)
    else:
        reasons = entrywise.check(ingredients, mixing) or not_joinable_reasons(ingredients, "RegMean")
    return reasons + (statistic_reasons(ingredients, "RegMean") if len(ingredients) > 1 else [])


def _module_reasons(ingredients: Sequence[SoupIngredient]) -> list[str]:
    """One sentence for LoRAs on different modules: moments exist only of the inputs of an ingredient's own modules."""
    first = ingredients[0]
    modules = first.config.widths().keys()
    for ingredient in ingredients:
        if ingredient.config.widths().keys() != modules:
            return [
                f"{first.ref} and {ingredient.ref} are on different modules, and RegMean needs the same: "
                "mix by 'concat'."
            ]
    return []


def too_wide(ingredients: Sequence[SoupIngredient], mixing: RegMeanMixing, max_width: int) -> list[str]:
    """One sentence where LoRAs would be wider than `max_width` together."""
    return concat.too_wide(ingredients, mixing, max_width) if ingredients[0].config.is_update else []


def result(ingredients: Sequence[SoupIngredient], _mixing: RegMeanMixing) -> AdapterConfig:
    """The soup's structure: that of each bottleneck; LoRAs' ranks added up."""
    if len(ingredients) == 1 or not ingredients[0].config.is_update:
        return ingredients[0].config
    return concat.joined(ingredients, concat.total_widths(ingredients))


def mix(ingredients: Sequence[SoupIngredient], mixing: RegMeanMixing) -> dict[str, Tensor]:
    """The soup's tensors, bottlenecks in their dtype; all ingredients are in memory at once.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or the soup leaves the dtype's range.
    """
    if len(ingredients) == 1:
        return average.mix(ingredients, AverageMixing(scale=mixing.scale))
    ordered = by_digest(ingredients)
    regression = _Regression(ordered, float(mixing.off_diagonal))
    loaded = [cast_finite(ingredient.load(), torch.float32) for ingredient in ordered]
    if ingredients[0].config.is_update:
        return _join_loras(ordered, loaded, regression, float(mixing.scale))
    weights = [torch.tensor(float(ingredient.weight), dtype=torch.float32) for ingredient in ordered]
    projections = set(projection_names(ordered[0].config, loaded[0]))
    soup = {}
    for name in canonical_order(loaded[0]):
        values = [tensors[name] for tensors in loaded]
        if name in projections:
            soup[name] = regression.solve(name, values).to(torch.float32)
        else:
            soup[name] = entrywise.weighted_sum(values, weights)
    return average.scaled(soup, ordered, mixing.scale)


def _join_loras(
    ordered: Sequence[SoupIngredient], loaded: Sequence[Mapping[str, Tensor]], regression: _Regression, scale: float
) -> dict[str, Tensor]:
    """LoRAs side by side, each with its A replaced by the solution for it."""
    fitted = [dict(tensors) for tensors in loaded]
    config = ordered[0].config
    assert isinstance(config, LoraConfig)  # `is_update`
    for path in config.modules():
        name = PREFIX + path + LORA_A
        solutions = regression.solve_each(name, [tensors[name] for tensors in loaded])
        for tensors, solution in zip(fitted, solutions, strict=True):
            tensors[name] = solution
    configs, factors = [ingredient.config for ingredient in ordered], [constant_factor(scale)] * len(fitted)
    return cast_finite(join_adapters(configs, fitted, factors), torch.float32)


class _Regression:
    """The linear system of each projection, from the ingredients' second moments; they are unpacked when needed."""

    def __init__(self, ingredients: Sequence[SoupIngredient], off_diagonal: float) -> None:
        self._statistics = [ingredient.load_statistic() for ingredient in ingredients]
        self._weights = [float(ingredient.weight) for ingredient in ingredients]
        self._off_diagonal = off_diagonal

    def solve(self, name: str, values: Sequence[Tensor]) -> Tensor:
        """The solution for W (outputs, inputs) of a projection, float64."""
        gram, targets = self._sides(name, values)
        solution: Tensor = torch.linalg.solve(gram, torch.stack(targets).sum(0))
        return solution.T

    def solve_each(self, name: str, values: Sequence[Tensor]) -> list[Tensor]:
        """The solution for each LoRA's A (rank, inputs), float64."""
        gram, targets = self._sides(name, values)
        solution = torch.linalg.solve(gram, torch.cat(targets, 1))
        return [columns.T for columns in solution.split([target.shape[1] for target in targets], 1)]

    def _sides(self, name: str, values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """sum_i w_i G_i (inputs, inputs), and each w_i G_i W_i^T; G_i is the identity where all inputs are zero."""
        size = values[0].shape[1]
        moments = [
            weight * unpacked(statistic[name], size)
            for weight, statistic in zip(self._weights, self._statistics, strict=True)
        ]
        mean = float(torch.stack([moment.trace() for moment in moments]).sum()) / size
        ridge = RIDGE * mean if mean > 0 else 1.0
        for moment, weight in zip(moments, self._weights, strict=True):
            diagonal = moment.diagonal().clone()
            moment *= self._off_diagonal
            moment.diagonal().copy_(diagonal + weight * ridge)
        targets = [moment @ value.double().T for moment, value in zip(moments, values, strict=True)]
        return torch.stack(moments).sum(0), targets
