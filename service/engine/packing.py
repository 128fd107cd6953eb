"""Packs several sequences into one forward pass: each token attends to the tokens of its own sequence only.

A pass runs over `ids (1, tokens)`. Everything in a model except attention processes each token alone, so only attention
must know where a sequence begins and ends: `Packing.attend` replaces it, through transformers' attention interface or
in a forward pass of our own (`llama`). Models are not changed, and without a packing they compute what they always do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from registry.errors import Internal
from service.engine.kv_cache import Row, SlabDecodes, SlabWrites

IMPLEMENTATION = "adaptersoup_packed"
"""Name of the packed attention in transformers' interface. It has no mask function there, so no mask is made."""


UNSUPPORTED_ARGUMENTS = ("softcap", "s_aux", "position_bias")
"""Arguments of transformers' attention that change the result and are not implemented here."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one sequence. `row` has the keys and values before them; None if there are none before."""

    start: int
    length: int
    row: Row | None = None


@dataclass(frozen=True)
class Packing:
    """The sequences of one pass: every token belongs to one chunk or to one group of decoded tokens.

    `writes` keep keys and values for later passes. Chunks attend causally unless `causal` is false (encoders).
    """

    chunks: Sequence[Chunk] = ()
    decodes: Sequence[SlabDecodes] = ()
    writes: Sequence[SlabWrites] = ()
    causal: bool = True

    @cached_property
    def _equal_runs(self) -> list[tuple[int, int, int]]:
        """Neighbouring chunks of one length without `row`, as (start, length, count): one call computes them."""
        runs: list[tuple[int, int, int]] = []
        for chunk in self.chunks:
            if chunk.row is not None:
                continue
            start, length, count = runs[-1] if runs else (0, 0, 0)
            if count and length == chunk.length and start + length * count == chunk.start:
                runs[-1] = start, length, count + 1
            else:
                runs.append((chunk.start, chunk.length, 1))
        return runs

    def attend(self, layer: int, query: Tensor, states: Tensor, *, scale: float, window: int | None) -> Tensor:
        """Attention (tokens, heads, size) of `query` (tokens, heads, size).

        `states` (tokens, heads, size) are the keys of all heads, then their values. Each token sees at most `window`
        keys, itself included; None is no limit.
        """
        for write in self.writes:
            write.append(layer, states)
        if not self.chunks and len(self.decodes) == 1:
            return self.decodes[0].attend(layer, query, scale, window)
        attention = partial(_attention, scale=scale, causal=self.causal, window=window)
        out = torch.empty_like(query)
        for start, length, count in self._equal_runs:
            tokens = slice(start, start + length * count)
            attended = attention(_rows(query[tokens], count), _rows(states[tokens], count))
            out[tokens] = attended.transpose(1, 2).flatten(0, 1)
        for chunk in self.chunks:
            if chunk.row is not None:
                tokens = slice(chunk.start, chunk.start + chunk.length)
                cached = chunk.row.read(layer, chunk.row.length + chunk.length)
                out[tokens] = attention(_rows(query[tokens], 1), cached[None])[0].transpose(0, 1)
        for group in self.decodes:
            out[group.tokens] = group.attend(layer, query[group.tokens], scale, window)
        return out


def _rows(states: Tensor, count: int) -> Tensor:
    """(count * length, heads, size) as (count, heads, length, size)."""
    return torch.unflatten(states, 0, (count, -1)).transpose(1, 2)


def _attention(query: Tensor, states: Tensor, *, scale: float, causal: bool, window: int | None) -> Tensor:
    """Attention (rows, heads, new, size) of the last `new` positions.

    `states` (rows, heads, all, size) are keys, then values.
    """
    new, total = query.shape[2], states.shape[2]
    key, value = torch.chunk(states, 2, dim=1)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
    mask = None
    exceeds_window = window is not None and total > window
    if causal and (exceeds_window or (1 < new < total)):
        mask = causal_mask(new, total, window, device=query.device)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, is_causal=causal and mask is None and new > 1
    )


def causal_mask(new: int, total: int, window: int | None, *, device: torch.device) -> Tensor:
    """Mask bool (new, total): True where the last `new` positions see a key, causally and within `window`."""
    queries = torch.arange(total - new, total, device=device)[:, None]
    keys = torch.arange(total, device=device)[None]
    visible = keys <= queries
    return visible if window is None else visible & (keys > queries - window)


def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention in transformers' interface: (1, tokens, heads, size), and no attention weights.

    Raises Internal for options that it does not implement: caps, sinks, biases, windows without causality.
    """
    scaling, window = options.get("scaling"), options.get("sliding_window")
    unsupported = next((name for name in UNSUPPORTED_ARGUMENTS if options.get(name) is not None), None)
    if packing is not None and not packing.causal and window is not None:
        unsupported = "sliding_window"
    if unsupported is not None:
        raise Internal(f"the packed attention knows no {unsupported!r}")
    assert packing is not None, "the packed attention is for packed passes alone"
    assert attention_mask is None, "a packed pass has no mask"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(getattr(module, "layer_idx", 0) or 0)
    size = value.shape[-1]
    if size < key.shape[-1]:  # attention by latents
        value = F.pad(value, (0, key.shape[-1] - size))
    states = torch.cat([key[0], value[0]]).transpose(0, 1)
    attended = packing.attend(layer, query[0].transpose(0, 1), states, scale=scale, window=window)
    return attended[None, ..., :size], None


AttentionInterface.register(IMPLEMENTATION, _packed_attention)


def first_position(model: nn.Module) -> int:
    """Position id of a sequence's first token: RoBERTa counts from its padding token's id plus one."""
    config = cast(Any, model.config)
    return int(config.pad_token_id) + 1 if config.model_type in ("roberta", "xlm-roberta") else 0


def packed_states(model: nn.Module, ids: Tensor, positions: Tensor, packing: Packing) -> Tensor:
    """Last hidden states (tokens, hidden) of `ids` (tokens,) at `positions` (tokens,), in the base's dtype."""
    config = cast(Any, model.config)
    implementation = config._attn_implementation
    config._attn_implementation = IMPLEMENTATION
    try:
        transformer = cast(nn.Module, model.base_model)
        output = transformer(input_ids=ids[None], position_ids=positions[None], use_cache=False, packing=packing)
        return cast(Tensor, output.last_hidden_state[0])
    finally:
        config._attn_implementation = implementation
