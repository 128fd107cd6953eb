"""TIES (Yadav et al., NeurIPS 2023, https://arxiv.org/abs/2306.01708): trim, elect a sign, average what agrees.

Each ingredient keeps the entries of the largest magnitude, a share of `density` of each projection. An entry of the
soup gets the sign of sum w_i theta_i over the kept entries. Its value is the weighted mean of the kept entries with
that sign: sum w_i theta_i / sum w_i. Equal weights give the paper's disjoint merge, and PEFT's `ties` at weights of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import partial

import torch
from torch import Tensor

from registry.adapters.masks import keep_highest
from registry.mixing import entrywise
from registry.mixing.compat import SoupIngredient
from registry.spec import TiesMixing


def mix(ingredients: Sequence[SoupIngredient], mixing: TiesMixing) -> dict[str, Tensor]:
    """The soup's tensors; raises InvalidRecipe where they are not finite."""
    return entrywise.mix_entries(ingredients, mixing, partial(_merge, density=Decimal(mixing.density)))


def _merge(values: Sequence[Tensor], weights: Sequence[Tensor], *, density: Decimal) -> Tensor:
    trimmed = [_trim(value, density) for value in values]
    positive = entrywise.weighted_sum(trimmed, weights) >= 0
    agree = [torch.where(positive, value > 0, value < 0) for value in trimmed]
    agreeing = [value * agrees for value, agrees in zip(trimmed, agree, strict=True)]
    shares = entrywise.weighted_sum([agrees.to(torch.float32) for agrees in agree], weights)
    return entrywise.weighted_sum(agreeing, weights) / shares.masked_fill(shares == 0, 1.0)


def _trim(values: Tensor, density: Decimal) -> Tensor:
    """The values with all but the largest set to 0; of equal values the lower index is trimmed first."""
    trimmed = values.numel() - int(density * values.numel())
    return torch.where(keep_highest({"": values.abs()}, trimmed)[""], values, 0.0)
