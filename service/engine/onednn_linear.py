"""Linear layers whose weights are stored in the memory layout of oneDNN's matrix product.

`nn.Linear` stores its weight row by row, and the product reorders it at every call: with the 16 tokens of a decode step
that takes longer than the product. Here it is reordered once, when a base model is loaded. The values are the same; the
order of summation may differ. A layer that would compute something else stays as it is.
"""

from __future__ import annotations

import logging
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

log = logging.getLogger("soup.engine")

_product = torch.ops.mkldnn._linear_pointwise

ROWS = 16
"""Tokens of a pass that the layout is chosen for."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Largest difference of a reordered layer's output, relative to the largest output, by dtype."""


class ReorderedLinear(nn.Linear):
    """A frozen linear layer on a CPU with `weight` (outputs, inputs) and `bias` (outputs,) or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.register_buffer("bias", bias, persistent=False)
        self._reordered = cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(weight, ROWS))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """A copy of the weight, row by row, for models whose code reads it."""
        return self._reordered.to_dense()

    def forward(self, input: Tensor) -> Tensor:
        """Outputs (..., outputs) for inputs (..., inputs)."""
        if input.requires_grad and torch.is_grad_enabled():  # oneDNN's product has no gradient
            return F.linear(input, self.weight, self.bias)
        return cast(Tensor, _product(input, self._reordered, self.bias, "none", [], ""))


def can_reorder(dtype: torch.dtype, device: str | torch.device) -> bool:
    """Return True if oneDNN has a layout for linear layers of this dtype on this device."""
    if torch.device(device).type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


@torch.no_grad()  # under inference_mode the new tensors could take part in no gradient later
def reorder_linears(model: nn.Module) -> int:
    """Replace a frozen model's linear layers by reordered ones where possible; return how many.

    An output layer that is tied to the embedding gets a separate weight.
    """
    count = 0
    for path, module in list(model.named_modules()):
        if type(module) is not nn.Linear and type(module) is not Conv1D:
            continue
        weight = module.weight.detach()
        if type(module) is Conv1D:  # stores it as (inputs, outputs)
            weight = weight.t()
        bias = None if module.bias is None else module.bias.detach()
        if min(weight.shape) < 2 or not can_reorder(weight.dtype, weight.device):
            continue
        reordered = ReorderedLinear(weight.contiguous(), bias)
        if not _agree(reordered, weight, bias):
            log.warning("the linear layer %s stays as it is: in its new form it computes something else", path)
            continue
        model.set_submodule(path, reordered)
        count += 1
    if count:
        for parameter in model.parameters():  # a view of the mapped file would keep the whole file in memory
            parameter.data = parameter.data.clone()
    return count


def _agree(reordered: ReorderedLinear, weight: Tensor, bias: Tensor | None) -> bool:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, reordered.in_features, generator=generator).to(weight.dtype)
    outputs = F.linear(inputs, weight, bias).float()
    error = (reordered(inputs).float() - outputs).abs().max()
    return bool(error <= TOLERANCE[weight.dtype] * outputs.abs().max())
