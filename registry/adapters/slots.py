"""Linear layers and norms of adapters, with parameters of one adapter or stacked with a slot for each of several.

A stacked parameter has the slots in front of its own dimensions, and is applied to states (slots, tokens, hidden).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Projection(nn.Linear):
    """A linear layer on the meta device, to be filled by its maker."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias, device="meta")

    def reset_parameters(self) -> None:
        """Draw no initial values: on the meta device that takes longer than all other steps of loading an adapter."""


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """`layer` of x (..., inputs); with a stacked weight (slots, outputs, inputs), of x (slots, tokens, inputs)."""
    weight, bias = layer.weight, layer.bias
    if weight.ndim == 2:
        return F.linear(x, weight, bias)
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


def add_linear(hidden: Tensor, x: Tensor, layer: nn.Linear) -> Tensor:
    """`hidden` plus `linear(x, layer)`, added in the layer's dtype; `layer` has no bias."""
    weight = layer.weight
    if weight.ndim == 2:
        return hidden + F.linear(x, weight)
    return torch.baddbmm(hidden.to(weight.dtype), x, weight.transpose(1, 2))


def per_slot(parameter: Tensor) -> Tensor:
    """A vector (hidden,) unchanged; a stacked one (slots, hidden) shaped to broadcast over (slots, tokens, hidden)."""
    return parameter.unsqueeze(1) if parameter.ndim == 2 else parameter


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm of x (..., hidden) with `weight` and `bias` (hidden,), or stacked ones (slots, hidden)."""
    if weight.ndim == 1:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    return torch.addcmul(per_slot(bias), F.layer_norm(x, weight.shape[1:], eps=eps), per_slot(weight))
