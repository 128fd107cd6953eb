"""The size and cost of a served adapter: parameters, and multiplications per token. Called by `work`.

Masks save no multiplication: all kernels here compute a pruned projection completely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from registry.adapters import expected_tensors
from registry.adapters.masks import without_masks
from registry.spec import AdapterConfig, BaseShape, FusionConfig


def relative_cost(config: AdapterConfig | None, shape: BaseShape) -> float:
    """Multiplications per token of the base with the adapter, relative to the base alone; 1 without an adapter.

    Counts linear modules and projections, and attention to a prefix, each of whose entries is multiplied once. Other
    costs of attention depend on the length of the text and are the same for all.
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
