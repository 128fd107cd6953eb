"""What an adapter holds and costs as it is served: parameters, and multiplications a token. Called by `work`.

Masks save no multiplication: a pruned projection is computed as a whole, which is what every kernel here does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from registry.adapters import expected_tensors
from registry.adapters.masks import without_masks
from registry.spec import AdapterConfig, BaseShape, FusionConfig


def relative_cost(config: AdapterConfig | None, shape: BaseShape) -> float:
    """Multiplications a token of the base with the adapter, over those of the base alone; 1 without one.

    Those of linear modules and projections, and of attention to a prefix: each of its entries is multiplied once.
    What attention costs besides depends on the length of the text and is the same in all.
    """
    base = sum(inputs * outputs for inputs, outputs in shape.linears.values())
    return 1.0 if config is None else (base + _multiplications(config, shape)) / base


def _multiplications(config: AdapterConfig, shape: BaseShape) -> int:
    once = sum(math.prod(size) for size in expected_tensors(config, shape).values() if len(size) == 2)
    if not isinstance(config, FusionConfig):
        return once
    return once + (config.members - 1) * shape.num_layers * shape.hidden_size**2  # a key for each member's output


def parameters(config: AdapterConfig, tensors: Mapping[str, Tensor]) -> int:
    """Numbers of an adapter that are not held at zero, frozen members included."""
    masked = sum(pruned.masked for pruned in config.prunings().values())
    return sum(tensor.numel() for tensor in without_masks(tensors).values()) - masked
