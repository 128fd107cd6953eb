"""Weighted average of adapter tensors: theta = sum_i w_i theta_i (AdapterSoup, section 2; METHODS section 5).

Bit-identical on every machine: fp32, a separate multiply and add per ingredient, ingredients in the order of
their digests, one cast at the end (DESIGN, invariant 2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from registry.adapters.weights import DTYPES, scale_output
from registry.errors import InvalidRecipe
from registry.soup.compat import Part, init_reasons, structure_reasons
from registry.spec import AverageMixing


def check(parts: Sequence[Part], mixing: AverageMixing) -> list[str]:
    """Every reason why these cannot be averaged; empty when they can."""
    reasons = structure_reasons(parts)
    return reasons if mixing.assume_same_init else reasons + init_reasons(parts)


def result_dtype(parts: Sequence[Part]) -> str:
    """The ingredients' dtype where they share one, else F32."""
    dtypes = {part.dtype for part in parts}
    return dtypes.pop() if len(dtypes) == 1 else "F32"


def mix(parts: Sequence[tuple[Part, Callable[[], Mapping[str, Tensor]]]], mixing: AverageMixing) -> dict[str, Tensor]:
    """The averaged tensors in the result's dtype; each ingredient is loaded once, one at a time.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or the result leaves the dtype's range.
    """
    ordered = sorted(parts, key=lambda pair: pair[0].digest)
    total: dict[str, Tensor] = {}
    for part, load in ordered:
        weight = torch.tensor(float(part.weight), dtype=torch.float32)
        for name, tensor in load().items():
            product = weight * tensor.to(torch.float32)
            total[name] = product if name not in total else total[name] + product
    if mixing.scale != "1":
        total = scale_output(total, float(mixing.scale))
    dtype = DTYPES[result_dtype([part for part, _ in ordered])]
    result = {name: tensor.to(dtype) for name, tensor in total.items()}
    broken = sorted(name for name, tensor in result.items() if not torch.isfinite(tensor).all())
    if broken:
        raise InvalidRecipe(
            f"The average is not finite in {len(broken)} tensors ({broken[0]} first): an ingredient holds NaN or "
            f"infinity, or the values leave the range of {dtype}."
        )
    return result
