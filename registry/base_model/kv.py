"""The sizes of a model's keys and values, seen in one pass over the model on torch's meta device.

Called by `architecture`. What configurations say of heads is not what every family caches (one head of several, keys
wider than values, layers that differ, states that are none of both), so the cache itself is looked at.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

_NO_PASS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError, IndexError, AssertionError)
"""What a model raises that does not run with a plain cache, or not on the meta device."""


def kv_of(model: nn.Module, layers: int) -> tuple[int, int] | None:
    """(heads, size of a head) of the keys and of the values of each of `layers`; None where they have no one size.

    `model` is a causal language model on the meta device; nothing is computed.
    """
    cache = DynamicCache()
    ids = torch.zeros((1, 1), dtype=torch.long, device="meta")
    try:
        with torch.no_grad():
            model.eval()
            getattr(model, "base_model")(input_ids=ids, past_key_values=cache, use_cache=True)  # noqa: B009
        sizes = {tuple(state.shape) for layer in cache.layers for state in _states(layer)}
    except _NO_PASS:
        return None
    if len(cache.layers) != layers or len(sizes) != 1:
        return None
    rows, heads, time, size = sizes.pop()
    return (heads, size) if (rows, time) == (1, 1) else None


def _states(layer: Any) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer of a cache; raises AttributeError for one that keeps something else."""
    return layer.keys, layer.values
