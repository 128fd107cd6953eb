"""Pruned adapters for tests: random tensors with random masks, drawn with NumPy, so the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from registry.adapters.masks import mask_name, pack, projections
from registry.mixing.compat import SoupIngredient
from registry.spec import AdapterConfig, Pruned
from tests.registry.random_adapters import make_ingredient, tensors_of

Tensors = dict[str, torch.Tensor]


def sparse(
    config: AdapterConfig, seed: int, *, sparsity: float = 0.4, tensors: Mapping[str, torch.Tensor] | None = None
) -> tuple[AdapterConfig, Tensors]:
    """Configuration and tensors of an adapter of `config`, whose entries are pruned at random."""
    config = config.dense()
    pruned_tensors = dict(tensors_of(config, seed) if tensors is None else tensors)
    draw = np.random.default_rng(10_000 + seed)
    pruned = {}
    for prefix, names in projections(config, pruned_tensors).items():
        total = sum(pruned_tensors[name].numel() for name in names)
        masked = round(sparsity * total)
        keep = np.ones(total, dtype=bool)
        keep[draw.permutation(total)[:masked]] = False
        start = 0
        for name in names:
            mask = torch.from_numpy(keep[start : start + pruned_tensors[name].numel()].copy()).reshape(
                pruned_tensors[name].shape
            )
            start += pruned_tensors[name].numel()
            pruned_tensors[name] = pruned_tensors[name].masked_fill(~mask, 0.0)
            pruned_tensors[mask_name(name)] = pack(mask)
        pruned[prefix] = Pruned(score="random", sparsity=sparsity, masked=masked, seed=seed)
    assert set(pruned) == set(config.prunable())
    return config.with_pruned(pruned), pruned_tensors


def sparse_ingredient(number: int, config: AdapterConfig, weight: str = "1", **changes: Any) -> SoupIngredient:
    """An ingredient like `random_adapters.make_ingredient`, pruned."""
    pruned, tensors = sparse(config, number, sparsity=changes.pop("sparsity", 0.4))
    return make_ingredient(number, pruned, weight, **{"load": lambda: tensors, **changes})
