"""Forward pass of decoders of the Llama family over the packed tokens of a pass, with few operations.

Computes what transformers' modules compute, with their weights: queries, keys and values in one product, as well as
both projections into the feed-forward module, and positions rotated in place. States are (tokens, hidden). Adapters
edit the outputs of the same modules as in any other family; no hook is called. All other families run
transformers' own code (`packing.packed_states`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from registry.adapters.batched import BatchedAdapters
from service.engine.onednn_linear import LinearPart
from service.engine.packing import Packing

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


class LlamaForward:
    """The forward pass of one base model of `FAMILIES`, with fused layers (`onednn_linear.prepare_linears`).

    See `packing.packed_states` for arguments and result.
    """

    def __init__(self, model: Any, adapters: BatchedAdapters) -> None:
        self._decoder = model.base_model
        self._norm = _RMSNorm(self._decoder.norm)
        self._layers = [_Layer(block, model.config, adapters) for block in self._decoder.layers]

    def __call__(self, ids: Tensor, positions: Tensor, packing: Packing) -> Tensor:
        """Last hidden states (tokens, hidden) of `ids` (tokens,) at `positions` (tokens,), in the base's dtype."""
        hidden: Tensor = self._decoder.embed_tokens(ids)
        angles = self._decoder.rotary_emb(hidden[None], positions[None])
        cos, sin = (values[0, :, None, : values.shape[-1] // 2] for values in angles)  # both halves are the same
        for number, layer in enumerate(self._layers):
            hidden = layer(number, hidden, (cos, sin), packing)
        return self._norm(hidden)


class _Layer:
    """One layer: attention and feed-forward module, each behind a norm and added to the residual stream."""

    def __init__(self, block: Any, config: Any, adapters: BatchedAdapters) -> None:
        attention, mlp = block.self_attn, block.mlp
        self._block = block
        self._edit = adapters.edit
        self._qkv = _Projections((attention.q_proj, attention.k_proj, attention.v_proj), adapters)
        self._gate_up = _Projections((mlp.gate_proj, mlp.up_proj), adapters)
        self._size: int = attention.head_dim
        queries, keys, values = (size // self._size for size in self._qkv.sizes)
        self._heads = [queries, keys + values]
        self._rotated = queries + keys
        self._norms = _RMSNorm(block.input_layernorm), _RMSNorm(block.post_attention_layernorm)
        slices = {"q_norm": slice(queries), "k_norm": slice(queries, self._rotated)}
        self._head_norms = [
            (_RMSNorm(getattr(attention, name)), columns)
            for name, columns in slices.items()
            if hasattr(attention, name)
        ]
        self._window: int | None = None
        if config.model_type != "llama":
            self._window = getattr(attention, "sliding_window", getattr(config, "sliding_window", None))

    def __call__(self, number: int, hidden: Tensor, rotation: tuple[Tensor, Tensor], packing: Packing) -> Tensor:
        block, edit = self._block, self._edit
        attention, mlp = block.self_attn, block.mlp
        x = edit(block.input_layernorm, hidden, self._norms[0](hidden))
        heads = self._qkv(x).view(len(x), -1, self._size)
        query, states = torch.split(heads, self._heads, dim=1)
        for norm, columns in self._head_norms:
            heads[:, columns] = norm(heads[:, columns])
        _rotate(heads[:, : self._rotated], *rotation)
        attended = packing.attend(number, query, states, scale=attention.scaling, window=self._window)
        attended = attended.reshape(len(x), -1)
        output = edit(attention.o_proj, attended, attention.o_proj.forward(attended))
        middle = hidden + edit(attention, x, output)
        x = edit(block.post_attention_layernorm, middle, self._norms[1](middle))
        gate, up = torch.split(self._gate_up(x), self._gate_up.sizes, dim=-1)
        inner = mlp.act_fn(gate).mul_(up)
        output = edit(mlp.down_proj, inner, mlp.down_proj.forward(inner))
        return edit(block, hidden, middle + edit(mlp, x, output))


class _Projections:
    """Linear layers that read the same states, computed as one product: all parts of one fused layer."""

    def __init__(self, layers: Sequence[LinearPart], adapters: BatchedAdapters) -> None:
        self.sizes = [layer.out_features for layer in layers]
        self._product = layers[0].fused.forward
        ends = list(accumulate(self.sizes))
        self._columns = {
            layer: slice(end - size, end) for layer, size, end in zip(layers, self.sizes, ends, strict=True)
        }
        self._adapters = adapters

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs of the layers side by side, (tokens, outputs), with the edits of each."""
        outputs = self._product(x)
        for layer, columns in self._columns.items():
            if self._adapters.has_edits(layer):
                outputs[:, columns] = self._adapters.edit(layer, x, outputs[:, columns])
        return outputs


class _RMSNorm:
    """A norm of the base, computed in fp32 at least as by transformers."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._epsilon = torch.tensor(module.variance_epsilon, device=module.weight.device)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Normalised states (..., size)."""
        weight = self.module.weight
        if hidden.is_cuda:
            return F.rms_norm(hidden, weight.shape, weight, self.module.variance_epsilon)
        x = hidden.to(self._epsilon.dtype)  # torch has no fused form for CPUs
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = torch.addcmul(self._epsilon, length, length, value=1 / len(weight)).rsqrt_()
        return (x * scale).to(hidden.dtype).mul_(weight)


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate heads (tokens, heads, size) in place by the angles of their positions (tokens, 1, size / 2)."""
    first, second = torch.split(states, [cos.shape[-1]] * 2, dim=-1)
    across = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).add_(across)
