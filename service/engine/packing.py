"""Several sequences in one row of tokens: who attends to whom in one forward pass, and where keys and values are kept.

A pass runs over `ids (1, tokens)`. Everything in a model but attention looks at one token at a time, so only attention
has to know where a sequence begins and ends: it is replaced, through transformers' attention interface, by
`Packing.attend`, which every family of today calls without any code of ours in the model. Without a packing the same
models compute what they always do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from registry.errors import Internal

IMPLEMENTATION = "adaptersoup_packed"
"""The name of our attention in transformers' interface. It has no mask function there, so no mask is made."""


UNSUPPORTED_ARGUMENTS = ("softcap", "s_aux", "position_bias")
"""Arguments of transformers' attention that change what it computes, and that are not computed here."""
PASS_DEPENDENT_ROPE = ("longrope", "dynamic")
"""Rotary embeddings whose frequencies depend on the longest position of a pass, and so on other sequences' lengths."""


class KVStore(Protocol):
    """Keys and values of rows, kept between passes; one of a layer at a time is asked for."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep `keys` and `values` (heads, new, size); gives all that there are now, (heads, all, size)."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one sequence. `memory` has what came before them, and keeps theirs; None is neither."""

    start: int
    length: int
    memory: KVStore | None = None


class DecodeGroup(Protocol):
    """The newest token of many sequences at once, whose keys and values lie in one tensor."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention (tokens, heads, size) of `query` (heads, tokens, size), whose keys and values are kept first."""

    tokens: Tensor
    """int64 (tokens,): their places in the pass."""


@dataclass(frozen=True)
class Packing:
    """The sequences of one pass: every token belongs to one piece or to one group of newest tokens.

    Pieces attend causally unless `causal` is false (encoders).
    """

    pieces: Sequence[Chunk] = ()
    newest: Sequence[DecodeGroup] = ()
    causal: bool = True

    @cached_property
    def _alike(self) -> list[tuple[int, int, int]]:
        """Neighbouring pieces of one length without memory, as (start, length, count): one call computes them."""
        found: list[tuple[int, int, int]] = []
        for piece in self.pieces:
            if piece.memory is not None:
                continue
            if found and found[-1][1] == piece.length and found[-1][0] + found[-1][1] * found[-1][2] == piece.start:
                found[-1] = (found[-1][0], piece.length, found[-1][2] + 1)
            else:
                found.append((piece.start, piece.length, 1))
        return found

    @cached_property
    def _all_newest(self) -> bool:
        """Whether the pass is one group of newest tokens in the order of their places: nothing is to be picked out."""
        if self.pieces or len(self.newest) != 1:
            return False
        tokens = self.newest[0].tokens
        return bool((tokens == torch.arange(len(tokens), device=tokens.device)).all())

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        """Attention (1, tokens, heads, size) of `query` (1, heads, tokens, size), `key` and `value` in their heads.

        Each token sees at most `window` keys, itself included, where a model says so.
        """
        heads, tokens = query.shape[1:3]
        if self._all_newest:
            return self.newest[0].attend(layer, query[0], key[0], value[0], scale, window)[None]
        out = torch.empty((tokens, heads, value.shape[-1]), dtype=query.dtype, device=query.device)
        for start, length, count in self._alike:
            end = start + length * count
            part = [_rows(states[0, :, start:end], count) for states in (query, key, value)]
            found = _attention(part[0], part[1], part[2], scale=scale, causal=self.causal, window=window)
            out[start:end] = found.transpose(1, 2).reshape(end - start, heads, -1)
        for piece in self.pieces:
            if piece.memory is None:
                continue
            end = piece.start + piece.length
            keys, values = piece.memory.write(layer, key[0, :, piece.start : end], value[0, :, piece.start : end])
            asked = query[:, :, piece.start : end]
            out[piece.start : end] = _attention(
                asked, keys[None], values[None], scale=scale, causal=self.causal, window=window
            )[0].transpose(0, 1)
        for group in self.newest:
            at = group.tokens
            out[at] = group.attend(layer, query[0, :, at], key[0, :, at], value[0, :, at], scale, window)
        return out[None]


def _rows(states: Tensor, count: int) -> Tensor:
    """(heads, count * length, size) as (count, heads, length, size)."""
    heads, tokens, size = states.shape
    return states.reshape(heads, count, tokens // count, size).transpose(0, 1)


def _attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, causal: bool, window: int | None) -> Tensor:
    """(rows, heads, new, size): the last `new` positions over keys and values (rows, fewer heads, all, size)."""
    new, everything = query.shape[2], key.shape[2]
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
    mask = None
    narrow = window is not None and everything > window
    if causal and (narrow or (1 < new < everything)):
        mask = visible(new, everything, window, device=query.device)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, is_causal=causal and mask is None and new > 1
    )


def visible(new: int, everything: int, window: int | None, *, device: torch.device) -> Tensor:
    """bool (new, everything): what the last `new` of `everything` positions see, causally and within `window`."""
    at = torch.arange(everything - new, everything, device=device)[:, None]
    other = torch.arange(everything, device=device)[None]
    seen = other <= at
    return seen if window is None else seen & (other > at - window)


def _packed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, sliding_window: int | None = None, packing: Packing | None = None, **given: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """What a model of transformers calls as its attention: (1, tokens, heads, size) and no weights.

    Raises Internal for what another attention is asked for: caps, sinks, biases, windows that look both ways.
    """
    other = next((name for name in UNSUPPORTED_ARGUMENTS if given.get(name) is not None), None)
    if packing is not None and not packing.causal and sliding_window is not None:
        other = "sliding_window"
    if other is not None:
        raise Internal(f"the packed attention knows no {other!r}")
    assert packing is not None, "the packed attention is for packed passes alone"
    assert attention_mask is None, "a packed pass has no mask"
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(getattr(module, "layer_idx", 0) or 0)
    return packing.attend(layer, query, key, value, scale=scale, window=sliding_window), None


AttentionInterface.register(IMPLEMENTATION, _packed_attention)


def first_position(model: nn.Module) -> int:
    """The position that a model gives a sequence's first token: RoBERTa counts from behind its padding token's."""
    config = cast(Any, model.config)
    return int(config.pad_token_id) + 1 if config.model_type in ("roberta", "xlm-roberta") else 0


def check_packable(model: nn.Module) -> None:
    """Raises Internal where sequences of one pass would change each other."""
    config = cast(Any, model.config)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [one.get("rope_type") for one in (rope, *rope.values()) if isinstance(one, dict)]
    if any(kind in PASS_DEPENDENT_ROPE for kind in kinds):
        raise Internal(
            f"rotary embeddings of type {next(k for k in kinds if k in PASS_DEPENDENT_ROPE)!r} depend on the pass"
        )


def packed_states(model: nn.Module, ids: Tensor, positions: Tensor, packing: Packing) -> Tensor:
    """Last hidden states (tokens, hidden) of `ids` (tokens,) at `positions` (tokens,), in the base's dtype."""
    config = cast(Any, model.config)
    usual = config._attn_implementation
    config._attn_implementation = IMPLEMENTATION
    try:
        transformer = cast(nn.Module, model.base_model)
        given = {"position_ids": positions[None], "use_cache": False, "packing": packing}
        return cast(Tensor, transformer(input_ids=ids[None], **given).last_hidden_state[0])
    finally:
        config._attn_implementation = usual
