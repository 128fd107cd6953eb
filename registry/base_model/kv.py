"""The sizes of a model's keys and values, seen in a pass over the model on torch's meta device.

Called by `architecture`. What configurations say of heads is not what every family caches (one head of several, keys
wider than values, layers that differ, states that are none of both), so the cache itself is looked at.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

_NO_PASS = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RuntimeError, IndexError, AssertionError)
"""What a model raises that does not run with a plain cache, or not on the meta device."""


def kv_of(model: Any, layers: int) -> tuple[int, int] | None:
    """(heads, size of a head) of the keys and of the values of each of `layers`; None where they have no one size.

    None too where a pass over the model, or over the transformer below its head, does not go through the model's
    decoder once (where a prefix is put in), and where it depends on values (a mixture of experts). `model` is a causal
    language model on the meta device; nothing is computed.
    """
    passes: list[Any] = []
    try:
        handle = model.get_decoder().register_forward_pre_hook(lambda *_: passes.append(None))
        found = [_sizes(part, layers) for part in (model, model.base_model)]
    except _NO_PASS:
        return None
    handle.remove()
    return found[0] if found[0] == found[1] and len(passes) == 2 else None


@torch.no_grad()
def _sizes(model: Any, layers: int) -> tuple[int, int] | None:
    cache = DynamicCache()
    ids = torch.zeros((1, 1), dtype=torch.long, device="meta")
    embedded = model.get_input_embeddings()(ids)  # among ids some families look for padding, and these have no values
    model.eval()(inputs_embeds=embedded, past_key_values=cache, use_cache=True)
    layers_seen: list[Any] = cache.layers  # one that keeps something else than keys and values is an AttributeError
    sizes = {tuple(state.shape) for layer in layers_seen for state in (layer.keys, layer.values)}
    if len(cache.layers) != layers or len(sizes) != 1:
        return None
    rows, heads, time, size = sizes.pop()
    return (heads, size) if (rows, time) == (1, 1) else None
