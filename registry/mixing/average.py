"""Weighted average of adapter tensors: theta = sum_i w_i theta_i (AdapterSoup, section 2).

Bit-identical on every machine: fp32, a separate multiply and add per ingredient, ingredients in the order of their
digests, one cast at the end. For bottlenecks of one initialisation this is the paper's soup. For LoRA the average of
the factors has cross terms, sum_ij w_i w_j B_i A_j. So LoRAs are only averaged on request, and the report's residual is
the distance to the mixture of the updates. A soup of pruned ingredients has one mask, made by the rule `masks`
(`sparse`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from registry.adapters.masks import is_mask
from registry.adapters.weights import DTYPES, scale_output
from registry.mixing import sparse
from registry.mixing.compat import (
    SoupIngredient,
    average_reasons,
    by_digest,
    init_reasons,
    layer_reasons,
    structure_reasons,
)
from registry.mixing.tensors import add_to, cast_finite
from registry.spec import AdapterConfig, AverageMixing


def check(ingredients: Sequence[SoupIngredient], mixing: AverageMixing) -> list[str]:
    """Every reason why these cannot be averaged; empty when they can. No tensor is read.

    Adapters may differ in whether and where they are pruned.
    """
    reasons = structure_reasons([replace(ingredient, config=ingredient.config.dense()) for ingredient in ingredients])
    reasons += average_reasons(ingredients, mixing.scale) + layer_reasons(ingredients)
    is_one_method = len({ingredient.config.method for ingredient in ingredients}) == 1
    return reasons + init_reasons(ingredients) if is_one_method and not mixing.assume_same_init else reasons


def result(ingredients: Sequence[SoupIngredient], mixing: AverageMixing) -> AdapterConfig:
    """The soup's structure: that of each ingredient, with the soup's own mask where they are pruned.

    Reads the masks of pruned ingredients; raises Incompatible where no entry is kept.
    """
    if len(ingredients) == 1 or not sparse.is_sparse(ingredients):
        return ingredients[0].config
    return sparse.soup_config(ingredients, mixing)


def result_dtype(ingredients: Sequence[SoupIngredient]) -> str:
    """The ingredients' dtype where they share one, else F32."""
    dtypes = {ingredient.dtype for ingredient in ingredients}
    return dtypes.pop() if len(dtypes) == 1 else "F32"


def mix(ingredients: Sequence[SoupIngredient], mixing: AverageMixing) -> dict[str, Tensor]:
    """The averaged tensors in the result's dtype; each ingredient is loaded once, one at a time.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or the result leaves the dtype's range.
    """
    total: dict[str, Tensor] = {}
    ordered = by_digest(ingredients)
    mask = sparse.SoupMask(ordered, mixing) if sparse.is_sparse(ingredients) else None
    for ingredient in ordered:
        weight, tensors = torch.tensor(float(ingredient.weight), dtype=torch.float32), ingredient.load()
        for name, tensor in tensors.items():
            if not is_mask(name):
                add_to(total, name, weight * tensor.to(torch.float32))
        if mask is not None:
            mask.add(ingredient, tensors)
    if mask is not None:
        total = sparse.apply_mask(total, mask)
    return scaled(total, ordered, mixing.scale)


def scaled(soup: Mapping[str, Tensor], ingredients: Sequence[SoupIngredient], scale: str) -> dict[str, Tensor]:
    """The soup with its output multiplied by `scale`, in the result's dtype; raises InvalidRecipe if not finite."""
    if scale != "1":
        soup = scale_output(soup, ingredients[0].config, float(scale))
    return cast_finite(soup, DTYPES[result_dtype(ingredients)])
