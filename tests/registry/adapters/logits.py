"""Logits of a tiny base model for the same tokens, with an adapter or without, and without gradients."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from registry.adapters import AdapterModule, attached

IDS = torch.tensor([[0, 5, 17, 250, 3, 99], [0, 8, 8, 130, 21, 60]])


def logits(model: nn.Module, adapter: AdapterModule | None = None) -> Tensor:
    with torch.no_grad(), nullcontext() if adapter is None else attached(model, adapter):
        return model(IDS).logits
