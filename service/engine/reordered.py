"""Linear layers whose weights lie in memory as oneDNN's matrix product reads them.

`nn.Linear` keeps its weight row by row, and the product brings it into the processor's order at every call: with the 16
tokens of a decode step that takes longer than the product. Here it is done once, when a base model is loaded. The
values are the same; the order in which a sum is added up may differ.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_product = torch.ops.mkldnn._linear_pointwise

ROWS = 16
"""Tokens of a pass that the order is chosen for."""


class ReorderedLinear(nn.Linear):
    """A frozen linear layer on a CPU, made of a `weight` (outputs, inputs) and a `bias` (outputs,) or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.register_buffer("bias", bias, persistent=False)
        self._reordered = cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(weight, ROWS))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A copy of the weight, row by row, for a model's own code that looks at it."""
        return self._reordered.to_dense()

    def forward(self, input: Tensor) -> Tensor:
        """Outputs (..., outputs) for inputs (..., inputs)."""
        if input.requires_grad and torch.is_grad_enabled():  # oneDNN's product has no gradient
            return F.linear(input, self.weight, self.bias)
        return cast(Tensor, _product(input, self._reordered, self.bias, "none", [], ""))


def reorders(dtype: torch.dtype, device: str | torch.device) -> bool:
    """Whether linear layers of this dtype are reordered on this device."""
    available = bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
    if torch.device(device).type != "cpu" or not available:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32
