"""Prefix tuning (Li & Liang, ACL 2021): trained keys and values of virtual tokens before every text.

Stored and computed as by PEFT 0.21 for PREFIX_TUNING without a projection: one tensor `prompt_embeddings` (length,
layers * 2 * heads * size), layer by layer, keys before values. The text's positions begin at `length`. They enter
through the key-value cache of the model's forward pass, without hooks inside the layers. So any family is supported
whose layers have keys and values of one size (`BaseShape.kv`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache, DynamicCache

from registry.adapters.attach import AdapterModule, Edit, InputEdit
from registry.adapters.initial import Init, Shapes, seeded
from registry.errors import Incompatible, Internal, InvalidParameter
from registry.spec import BaseShape, PrefixConfig

PROMPT = "prompt_embeddings"


class OnePassCache(DynamicCache):
    """A cache that holds the prefix in a pass without caching; some models return it all the same."""


class PrefixAdapter(AdapterModule):
    """A prefix without values: built on torch's meta device and filled by its maker.

    Raises Incompatible for a base model without one size of keys and values, or whose context it would fill.
    """

    config: PrefixConfig

    def __init__(self, config: PrefixConfig, shape: BaseShape) -> None:
        super().__init__()
        if shape.kv is None:
            raise Incompatible(
                f"A prefix does not work with this base model (family {shape.model_type!r}): it is not causal, or "
                "its keys and values differ in size between layers.",
                param="base_model",
            )
        if config.length > shape.context - 2:
            raise Incompatible(
                f"A prefix of {config.length} virtual tokens leaves no room for text in a context of {shape.context}.",
                param="base_model",
            )
        self.config = config
        self._shape = shape
        self._heads, self._size = shape.kv
        self.prompt_embeddings = nn.Parameter(
            torch.empty(config.length, shape.num_layers * 2 * self._heads * self._size, device="meta")
        )

    def edits(self, _model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """None: a prefix edits no output."""
        return iter(())

    def inputs(self, model: nn.Module) -> Iterator[tuple[nn.Module, InputEdit]]:
        """The module that every pass over the layers goes through, and the edit that adds the prefix to its arguments.

        That module takes the cache: `base_model`, or the decoder that it calls (OPT's, which the language model calls
        directly). `BaseShape.kv` is None where passes do not go through it.
        """
        yield cast(Callable[[], nn.Module], model.get_decoder)(), self.add_prefix

    def prefix_states(self) -> Tensor:
        """Keys and values (layers, 2, heads, length, size) of the virtual tokens."""
        sizes = self._shape.num_layers, 2, self._heads, self._size
        states = self.prompt_embeddings.reshape(self.config.length, *sizes)
        return states.permute(1, 2, 3, 0, 4)

    def layers(self, rows: int, *, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer, each (rows, heads, length, size), for `rows` texts."""
        states = self.prefix_states().to(dtype).unsqueeze(2).expand(-1, -1, rows, -1, -1, -1)
        return [(layer[0], layer[1]) for layer in states]

    def add_prefix(self, module: nn.Module, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a forward pass with the prefix in its cache, its mask, and before its positions.

        A missing or empty cache gets the prefix; one that holds states was filled in a pass with the prefix and has it.
        The caller's mask covers cached and new tokens without the prefix. Raises Internal where it does not, because
        the cache was then filled without the prefix; and InvalidParameter for more text than fits.
        """
        source = arguments["input_ids"] if arguments.get("input_ids") is not None else arguments["inputs_embeds"]
        rows, new = int(source.shape[0]), int(source.shape[1])
        cache: Cache | None = arguments.get("past_key_values")
        if cache is None or isinstance(cache, OnePassCache):
            cache = OnePassCache() if arguments.get("use_cache") is False else DynamicCache()
        if cache.get_seq_length() == 0:
            for number, (keys, values) in enumerate(self.layers(rows, dtype=cast(torch.dtype, module.dtype))):
                cache.update(keys, values, number)
        self._check_context(cache.get_seq_length() + new)
        changed = {**arguments, "past_key_values": cache}
        mask, positions = arguments.get("attention_mask"), arguments.get("position_ids")
        if mask is not None:
            changed["attention_mask"] = self._covering(mask, cached=cache.get_seq_length(), new=new)
        if positions is not None:
            changed["position_ids"] = positions + self.config.length
        return changed

    def _check_context(self, tokens: int) -> None:
        length, context = self.config.length, self._shape.context
        if tokens > context:
            raise InvalidParameter(
                f"The text has {tokens - length} tokens, and {context - length} fit: the prefix takes {length} of "
                f"the base model's context of {context}.",
                param="tokens",
            )

    def _covering(self, mask: object, *, cached: int, new: int) -> Tensor:
        """The mask with the prefix's columns in front, visible to every token."""
        length = self.config.length
        if not isinstance(mask, Tensor) or mask.ndim not in (2, 4):
            raise Internal("A prefix needs an attention mask that is one tensor (rows, time) or (rows, 1, new, time).")
        if mask.shape[-1] + length != cached + new:
            raise Internal(
                f"An attention mask of {mask.shape[-1]} columns does not go with {cached} cached and {new} new tokens, "
                f"{length} of them the prefix: the cache was filled without it."
            )
        visible = 0.0 if mask.is_floating_point() and mask.ndim == 4 else 1.0  # such a mask is added to the scores
        return F.pad(mask, (length, 0), value=visible)


def initial_prefix(
    _config: PrefixConfig, shapes: Shapes, *, seed: int, init: Init, base: nn.Module | None
) -> dict[str, Tensor]:
    """fp32 `prompt_embeddings`, seeded by NumPy's PCG64.

    - `near_identity`, `zero_up`: keys and values that `base` computes for tokens drawn from its vocabulary (Li & Liang,
      section 7.4: activations of any words are a far better start than random numbers). The base was trained with
      other text before a BOS, so that its output hardly changes; zeros would draw attention off the text. The base
      computes them on one thread, so that their last bits depend on the machine but not on the number of threads.
    - `linear`: N(0, 1), PEFT's default. Starts far from the base.

    Raises InvalidParameter for an unknown `init`, a negative seed, or activations without `base`.
    """
    rng = seeded(seed, init)
    (shape,) = shapes.values()
    if init == "linear":
        return {PROMPT: torch.from_numpy(rng.standard_normal(shape).astype(np.float32))}
    if base is None:
        raise InvalidParameter("A prefix starts from the base's keys and values: pass the base model.", param="base")
    config: Any = base.config
    return {PROMPT: _activations(base, rng.integers(config.vocab_size, size=shape[0])).reshape(shape)}


@torch.no_grad()
def _activations(base: Any, tokens: np.ndarray) -> Tensor:
    """fp32 (length, layers, 2, heads, size): keys and values of int64 `tokens` (length,) alone."""
    cache = DynamicCache()
    ids = torch.from_numpy(tokens)[None].to(base.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums are taken in an order that does not depend on how many threads share them
    try:
        base.base_model(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True)
    finally:
        torch.set_num_threads(threads)
    pairs = [torch.stack([layer.keys[0], layer.values[0]]) for layer in cast(Any, cache).layers]
    states = torch.stack(pairs)  # (layers, 2, heads, length, size)
    return states.permute(3, 0, 1, 2, 4).to("cpu", torch.float32, copy=True).contiguous()
