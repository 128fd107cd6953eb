"""The mean of hidden states written out over a padded batch, to hold the packed engine's against."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_pool(hidden: Tensor, mask: Tensor) -> Tensor:
    """fp32 (batch, hidden): the mean over positions whose `mask` (batch, time) is not zero; zeros where none is."""
    weight = mask.to(torch.float32).unsqueeze(-1)  # (batch, time, 1)
    return (hidden.float() * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)
