"""Casting a soup to its dtype, once at the end of every mixing, and refusing NaN and infinity."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from registry.adapters.masks import is_mask, values
from registry.adapters.weights import DTYPES
from registry.errors import InvalidRecipe


def cast_finite(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors in the soup's dtype, masks as they are.

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


def dtype_of(tensors: Mapping[str, Tensor]) -> str:
    """The one dtype of a soup's tensors as the catalogue calls it: F32, F16 or BF16."""
    dtype = next(iter(values(tensors).values())).dtype
    return next(name for name, one in DTYPES.items() if one == dtype)
