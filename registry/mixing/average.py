"""Weighted average of adapter tensors: theta = sum_i w_i theta_i (AdapterSoup, section 2).

Bit-identical on every machine: fp32, a separate multiply and add per ingredient, ingredients in the order of their
digests, one cast at the end. For bottlenecks of one initialisation this is the paper's soup. For LoRA the average of
the factors has cross terms, sum_ij w_i w_j B_i A_j: it is made on request only, and the report's residual says how far
it is from the mixture of the updates. Of pruned ingredients the soup has one mask, made by the rule `masks`
(`sparse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from registry.adapters.masks import is_mask
from registry.adapters.weights import DTYPES, scale_output
from registry.mixing import sparse
from registry.mixing.cast import cast_finite
from registry.mixing.compat import (
    SoupIngredient,
    average_reasons,
    by_digest,
    init_reasons,
    layer_reasons,
    structure_reasons,
)
from registry.spec import AdapterConfig, AverageMixing


def check(parts: Sequence[SoupIngredient], mixing: AverageMixing) -> list[str]:
    """Every reason why these cannot be averaged; empty when they can. No tensor is read.

    What of an adapter is pruned may differ, or that anything is.
    """
    reasons = structure_reasons([replace(part, config=part.config.dense()) for part in parts])
    reasons += average_reasons(parts, mixing.scale) + layer_reasons(parts)
    of_one_method = len({part.config.method for part in parts}) == 1
    return reasons + init_reasons(parts) if of_one_method and not mixing.assume_same_init else reasons


def result(parts: Sequence[SoupIngredient], mixing: AverageMixing) -> AdapterConfig:
    """The soup's structure: that of each ingredient, where they are pruned with the mask they are given.

    Reads the masks of pruned ingredients; raises Incompatible where they have nothing in common that is kept.
    """
    if len(parts) == 1 or not sparse.is_sparse(parts):
        return parts[0].config
    return sparse.soup_config(parts, mixing)


def result_dtype(parts: Sequence[SoupIngredient]) -> str:
    """The ingredients' dtype where they share one, else F32."""
    dtypes = {part.dtype for part in parts}
    return dtypes.pop() if len(dtypes) == 1 else "F32"


def mix(parts: Sequence[SoupIngredient], mixing: AverageMixing) -> dict[str, Tensor]:
    """The averaged tensors in the result's dtype; each ingredient is loaded once, one at a time.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or the result leaves the dtype's range.
    """
    total: dict[str, Tensor] = {}
    ordered = by_digest(parts)
    mask = sparse.OneMask(ordered, mixing) if sparse.is_sparse(parts) else None
    for part in ordered:
        weight, tensors = torch.tensor(float(part.weight), dtype=torch.float32), part.load()
        for name, tensor in tensors.items():
            if not is_mask(name):
                product = weight * tensor.to(torch.float32)
                total[name] = product if name not in total else total[name] + product
        if mask is not None:
            mask.add(part, tensors)
    if mask is not None:
        total = sparse.put_on(total, mask)
    if mixing.scale != "1":
        total = scale_output(total, ordered[0].config, float(mixing.scale))
    return cast_finite(total, DTYPES[result_dtype(parts)])
