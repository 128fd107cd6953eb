"""The linear layers of a base model that was loaded, put into the form in which the engine computes them.

They are reordered for the processor's product of matrices, or rounded to 8-bit integers where the operator says so. A
layer that would then compute something else stays as it is.
"""

from __future__ import annotations

import logging

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from registry.spec import Quantization
from service.engine.quantised import QuantisedLinear
from service.engine.reordered import ReorderedLinear, reorders

log = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""How far the output of a layer in its new form may be from what it was, as a share of the largest; by dtype."""
TOLERANCE_IN_INT8 = 5e-2


@torch.no_grad()  # inference tensors could be in no computation of a gradient later
def prepare_linears(model: nn.Module, quantization: Quantization | None = None) -> int:
    """Put layers of another form in the place of a frozen model's linear ones, where it can; gives how many.

    The output layer gets a weight of its own where it is tied to the embedding, and is never rounded.
    """
    find_output = getattr(model, "get_output_embeddings", None)
    output = None if find_output is None else find_output()
    count = 0
    for path, module in list(model.named_modules()):
        if type(module) is not nn.Linear and type(module) is not Conv1D:
            continue
        weight = module.weight.detach()
        if type(module) is Conv1D:  # keeps it as (inputs, outputs)
            weight = weight.t()
        bias = None if module.bias is None else module.bias.detach()
        if min(weight.shape) < 2:
            continue
        found: nn.Linear
        if quantization == "int8" and module is not output:
            found, tolerance = QuantisedLinear(weight, bias), TOLERANCE_IN_INT8
        elif reorders(weight.dtype, weight.device):
            found, tolerance = ReorderedLinear(weight.contiguous(), bias), TOLERANCE[weight.dtype]
        else:
            continue
        if not _agree(found, weight, bias, tolerance):
            log.warning("the linear layer %s stays as it is: in its new form it computes something else", path)
            continue
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, found)
        count += 1
    if count:
        for parameter in model.parameters():  # as it lies in its file, one of them holds the whole file in memory
            parameter.data = parameter.data.clone()
    return count


def _agree(found: nn.Linear, weight: Tensor, bias: Tensor | None, tolerance: float) -> bool:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, found.in_features, generator=draw).to(weight.dtype)
    wanted = F.linear(inputs, weight, bias).float()
    distance = (found(inputs).float() - wanted).abs().max()
    return bool(distance <= tolerance * wanted.abs().max())
