"""Linear layers computed in 8-bit integers: a quarter of fp32's bytes, and twice to four times its speed.

Weights are rounded once, with a scale for each output. The states of each token are rounded when they come, with a
scale of that token's own: what a token gets depends on no other token of its pass, and sums of integers are exact, so
it is the same number in every batch.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LARGEST = 127
"""Of a rounded weight; they are signed, and lie around 0."""
STEPS = 254
"""Of rounded states, which are unsigned bytes, as the processor's instructions (VNNI) take them; one is spare."""
SMALLEST = 1e-30
"""Scale of a token whose states are all the same."""
ROWS = 16
"""Tokens of a pass that the order of weights in memory is chosen for."""


class QuantisedLinear(nn.Linear):
    """A frozen linear layer on a CPU, made of a `weight` (outputs, inputs) and a `bias` (outputs,) or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.register_buffer("bias", bias, persistent=False)
        self._dtype = weight.dtype
        values = weight.float()
        largest = values.abs().amax(dim=1)
        self._scales = torch.where(largest > 0, largest / LARGEST, 1.0)
        rounded = (values / self._scales[:, None]).round_().to(torch.int8).contiguous()
        self._sums = rounded.sum(dim=1, dtype=torch.int64) * self._scales
        self._zeros = torch.zeros(self.out_features, dtype=torch.int64)
        self._packed = cast(Tensor, torch.ops.onednn.qlinear_prepack(rounded, [ROWS, self.in_features]))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The rounded weight in the dtype that it had, for a model's own code that looks at it."""
        return (self._packed.to_dense().t() * self._scales[:, None]).to(self._dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Outputs (..., outputs) for inputs (..., inputs)."""
        if input.requires_grad and torch.is_grad_enabled():  # a product of integers has no gradient
            return F.linear(input, self.weight, self.bias)
        states, scales, least = quantised(input)
        products: Tensor = torch.ops.onednn.qlinear_pointwise(
            states, 1.0, 0, self._packed, self._scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        found = products.mul_(scales).addcmul_(least, self._sums)
        if self.bias is not None:
            found.add_(self.bias)
        return found.to(input.dtype).view(*input.shape[:-1], self.out_features)


def quantised(states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """States (..., inputs) rounded by token: uint8 (tokens, inputs), and a scale and a least (tokens, 1) in fp32.

    A state is scale * rounded + least, and 0 is one of the steps: most states are small, and would all be off to one
    side. A token with a value that is no finite number gets a scale that is none.
    """
    rows = states.reshape(-1, states.shape[-1])
    least, largest = (found.float() for found in rows.aminmax(dim=1, keepdim=True))
    scales = largest.sub_(least).div_(STEPS).clamp_min_(SMALLEST)
    least = least.div_(scales).round_().mul_(scales)
    return (rows - least).div_(scales).add_(0.5).to(torch.uint8), scales, least


def quantises(device: str | torch.device) -> bool:
    """Whether the processor of this device has the instructions; without them sums of products overflow."""
    return torch.device(device).type == "cpu" and bool(torch.cpu._is_vnni_supported())
