"""Steps that mixing methods share: add up tensors by name, and cast the soup, refusing NaN and infinity."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from registry.adapters.masks import is_mask
from registry.errors import InvalidRecipe


def add_to(totals: dict[str, Tensor], name: str, value: Tensor) -> None:
    """Add `value` to the total of that name, which it becomes if there is none."""
    totals[name] = totals[name] + value if name in totals else value


def cast_finite(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors in the soup's dtype, masks unchanged.

    Raises InvalidRecipe where values are NaN, infinite or out of its range.
    """
    result = {name: tensor if is_mask(name) else tensor.to(dtype) for name, tensor in tensors.items()}
    broken = sorted(name for name, tensor in result.items() if not torch.isfinite(tensor).all())
    if broken:
        raise InvalidRecipe(
            f"The soup is not finite in {len(broken)} tensors ({broken[0]} first): an ingredient holds NaN or "
            f"infinity, or the values leave the range of {dtype}."
        )
    return result
