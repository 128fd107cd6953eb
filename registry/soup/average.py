"""Weighted average of adapter tensors: theta = sum_i w_i theta_i (AdapterSoup, section 2; METHODS section 5).

Bit-identical on every machine: fp32, a separate multiply and add per ingredient, ingredients in the order of
their digests, one cast at the end (DESIGN, invariant 2). For bottlenecks of one initialisation this is the paper's
soup. For LoRA the average of the factors has cross terms, sum_ij w_i w_j B_i A_j: it is made on request only, and
the report's residual says how far it is from the mixture of the updates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from registry.adapters.weights import DTYPES, scale_output
from registry.soup.compat import Part, by_digest, init_reasons, structure_reasons
from registry.soup.finite import cast_finite
from registry.spec import AdapterConfig, AverageMixing


def check(parts: Sequence[Part], mixing: AverageMixing) -> list[str]:
    """Every reason why these cannot be averaged; empty when they can. No tensor is read."""
    reasons = structure_reasons(parts)
    of_one_method = len({part.config.method for part in parts}) == 1
    return reasons + init_reasons(parts) if of_one_method and not mixing.assume_same_init else reasons


def result(parts: Sequence[Part], _mixing: AverageMixing) -> AdapterConfig:
    """The soup's structure: that of each ingredient."""
    return parts[0].config


def result_dtype(parts: Sequence[Part]) -> str:
    """The ingredients' dtype where they share one, else F32."""
    dtypes = {part.dtype for part in parts}
    return dtypes.pop() if len(dtypes) == 1 else "F32"


def mix(parts: Sequence[Part], mixing: AverageMixing) -> dict[str, Tensor]:
    """The averaged tensors in the result's dtype; each ingredient is loaded once, one at a time.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or the result leaves the dtype's range.
    """
    total: dict[str, Tensor] = {}
    for part in by_digest(parts):
        weight = torch.tensor(float(part.weight), dtype=torch.float32)
        for name, tensor in part.load().items():
            product = weight * tensor.to(torch.float32)
            total[name] = product if name not in total else total[name] + product
    if mixing.scale != "1":
        total = scale_output(total, float(mixing.scale))
    return cast_finite(total, DTYPES[result_dtype(parts)])
