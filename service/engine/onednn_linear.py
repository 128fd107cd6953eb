"""Linear layers whose weights are stored in the memory layout of oneDNN's matrix product.

`nn.Linear` stores its weight row by row, and the product reorders it at every call: with the 16 tokens of a decode step
that takes longer than the product. Here it is reordered once, when a base model is loaded. The values are the same; the
order of summation may differ. A layer that would compute something else stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

log = logging.getLogger("soup.engine")

_product = torch.ops.mkldnn._linear_pointwise

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of linear layers that read the same states, which `llama` computes as one product."""
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


class LinearPart(nn.Linear):
    """A linear layer whose weight is the rows from `start` on of the `fused` layer's.

    Its `forward` computes the whole product and returns its columns: `llama` calls `fused` once instead.
    """

    def __init__(self, fused: nn.Linear, start: int, outputs: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = fused.in_features, outputs
        self.fused = fused
        self._rows = slice(start, start + outputs)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Its rows of the fused weight."""
        return self.fused.weight[self._rows]

    @property
    def bias(self) -> Tensor | None:  # type: ignore[override]
        """Its part of the fused bias."""
        return None if self.fused.bias is None else self.fused.bias[self._rows]

    def forward(self, input: Tensor) -> Tensor:
        """Outputs (..., outputs) for inputs (..., inputs)."""
        return cast(Tensor, self.fused(input)[..., self._rows])


def can_reorder(dtype: torch.dtype, device: str | torch.device) -> bool:
    """Return True if oneDNN has a layout for linear layers of this dtype on this device."""
    if torch.device(device).type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


@torch.no_grad()  # under inference_mode the new tensors could take part in no gradient later
def prepare_linears(model: nn.Module, *, fuse: bool) -> int:
    """Reorder a frozen model's linear layers where possible, and return how many; with `fuse`, fuse those of FUSED.

    An output layer that is tied to the embedding gets a separate weight.
    """
    count = 0
    for path, module in list(model.named_modules()):
        for names in FUSED if fuse else ():
            count += _fuse(module, names, path)
        if type(module) is nn.Linear or type(module) is Conv1D:
            weight = module.weight.detach()
            if type(module) is Conv1D:  # stores it as (inputs, outputs)
                weight = weight.t()
            reordered = _reordered(weight, None if module.bias is None else module.bias.detach(), path)
            if reordered is not None and model.get_submodule(path) is module:
                model.set_submodule(path, reordered)
                count += 1
    if count:
        for parameter in model.parameters():  # a view of the mapped file would keep the whole file in memory
            parameter.data = parameter.data.clone()
    return count


def _fuse(parent: nn.Module, names: Sequence[str], path: str) -> int:
    """Replace linear layers of `parent` by parts of one layer; return how many are reordered."""
    layers = [module for name in names if type(module := getattr(parent, name, None)) is nn.Linear]
    if len(layers) < len(names) or len({layer.bias is None for layer in layers}) == 2:
        return 0
    weight = torch.cat([layer.weight.detach() for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
    fused: nn.Linear | None = _reordered(weight, bias, f"{path}.{'+'.join(names)}")
    is_reordered = fused is not None
    if fused is None:
        fused = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
        fused.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}), assign=True)
        fused.requires_grad_(False)
    start = 0
    for name, layer in zip(names, layers, strict=True):
        setattr(parent, name, LinearPart(fused, start, layer.out_features))
        start += layer.out_features
    return is_reordered * len(layers)


def _reordered(weight: Tensor, bias: Tensor | None, path: str) -> ReorderedLinear | None:
    """A reordered layer with this weight (outputs, inputs); None where it is not possible."""
    if min(weight.shape) < 2 or not can_reorder(weight.dtype, weight.device):
        return None
    reordered = ReorderedLinear(weight.contiguous(), bias)
    if _agree(reordered, weight, bias):
        return reordered
    log.warning("the linear layer %s stays as it is: in its new form it computes something else", path)
    return None


def _agree(reordered: ReorderedLinear, weight: Tensor, bias: Tensor | None) -> bool:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, reordered.in_features, generator=generator).to(weight.dtype)
    outputs = F.linear(inputs, weight, bias).float()
    error = (reordered(inputs).float() - outputs).abs().max()
    return bool(error <= TOLERANCE[weight.dtype] * outputs.abs().max())
