"""vLLM's models with layers of zeros, which the LoRAs of `registry.adapters.bottleneck_lora` turn into bottlenecks.

vLLM imports this module by the names that the plugin registers, in the processes that hold a model. Which kinds have
layers is a setting (`SOUP_VLLM_BOTTLENECKS`). A layer of the model gets its layers of zeros as further modules, and
forward hooks on the MLP and the attention module. Kinds that read the residual stream have their hook on the layer,
whose output is the MLP's and the residual stream before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ReplicatedLinear
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.model_executor.models.utils import PPMissingLayer

from adaptersoup.vllm.settings import VllmSettings
from registry.adapters.bottleneck_lora import LAYERS, BottleneckKind, Layer, kinds_named, trained_norm
from registry.errors import Incompatible


class ZeroLayer(ReplicatedLinear):  # type: ignore[misc]  # vLLM is installed in its own environments only
    """A linear layer of zeros: it has no weights, and LoRAs add to its output."""

    def __init__(self, inputs: int, outputs: int, *, prefix: str) -> None:
        super().__init__(inputs, outputs, bias=False, return_bias=False, prefix=prefix)
        no_weight = self.weight.new_empty(0)  # vLLM asks for its device
        del self.weight
        self.register_buffer("weight", no_weight, persistent=False)
        self.quant_method = None  # nothing to load or to quantise

    def forward(self, x: Tensor) -> Tensor:
        """Zeros (..., outputs)."""
        return x.new_zeros((*x.shape[:-1], self.output_size))


class LayerBottlenecks:
    """The bottlenecks of one layer of the model: its layers of zeros, and the hooks that use them.

    A token has one adapter at most, so that all kinds but one add zeros to it.
    """

    def __init__(self, layer: Any, kinds: Sequence[BottleneckKind], *, rank: int, prefix: str) -> None:
        self._layer = layer
        self._on_mlp = [kind for kind in kinds if kind.input == "module"]
        self._on_residual = [kind for kind in kinds if kind.input == "residual"]
        self._houlsby = [kind for kind in kinds if kind.structure == "houlsby"]
        for kind in kinds:
            for name, (inputs, outputs) in kind.layers(layer.input_layernorm.hidden_size, rank).items():
                layer.add_module(name, ZeroLayer(inputs, outputs, prefix=f"{prefix}.{name}"))
        if self._on_mlp:
            layer.mlp.register_forward_hook(self._edit_mlp)
        if self._on_residual:
            layer.register_forward_hook(self._edit_layer)
        if self._houlsby:
            layer.self_attn.register_forward_hook(self._edit_attention)
            for number, norm in enumerate((layer.input_layernorm, layer.post_attention_layernorm)):
                norm.register_forward_hook(partial(self._edit_norm, number))

    def _zero_layer(self, name: str) -> Layer:
        """The layer of zeros of a name, which vLLM has replaced by one with LoRAs; raises Incompatible if it has not.

        Adapters would be loaded without it, and change nothing.
        """
        layer = self._layer.get_submodule(name)
        if isinstance(layer, ZeroLayer):
            raise Incompatible(
                f"vLLM has no LoRA on {name!r}: name it in --lora-target-modules, or leave its kind out of "
                "SOUP_VLLM_BOTTLENECKS."
            )
        return cast(Layer, layer)

    def _update(self, kind: BottleneckKind, site: str, source: Tensor) -> Tensor:
        name = kind.sites()[site]
        return kind.update(source, self._zero_layer(f"{name}_down"), self._zero_layer(f"{name}_up"))

    def _edit_mlp(self, _module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        for kind in self._on_mlp:
            output = output + self._update(kind, "ffn", args[0] if kind.structure == "parallel" else output)
        return output

    def _edit_attention(self, _module: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        for kind in self._houlsby:
            output = output + self._update(kind, "attention", output)
        return output

    def _edit_layer(
        self, _module: nn.Module, _args: tuple[Any, ...], outputs: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Edit the MLP's output; the second is the residual stream that the next norm adds to it."""
        output, residual = outputs
        for kind in self._on_residual:
            source = residual if kind.structure == "parallel" else output + residual
            output = output + self._update(kind, "ffn", source)
        return output, residual

    def _edit_norm(
        self, number: int, norm: Any, args: tuple[Tensor, ...], output: Tensor | tuple[Tensor, Tensor]
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Edit the output of a norm, which has the residual stream beside it but in the first layer."""
        normalised, residual = output if isinstance(output, tuple) else (output, args[0])
        unscaled = F.rms_norm(residual, residual.shape[-1:], eps=norm.variance_epsilon)
        for kind in self._houlsby:
            normalised = trained_norm(normalised, unscaled, self._zero_layer(kind.norms()[number]))
        return (normalised, residual) if isinstance(output, tuple) else normalised


class WithBottlenecks(nn.Module):
    """Adds the layers of zeros to a model of vLLM, the next class in the order of inheritance."""

    model: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        kinds = kinds_named(VllmSettings().vllm_bottlenecks) if vllm_config.lora_config else []
        if kinds:  # what vLLM compiles is kept by its configuration
            vllm_config.additional_config = {
                **vllm_config.additional_config,
                "bottlenecks": [kind.name for kind in kinds],
            }
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        for number, layer in enumerate(self.model.layers):
            if kinds and not isinstance(layer, PPMissingLayer):
                rank = vllm_config.lora_config.max_lora_rank
                LayerBottlenecks(layer, kinds, rank=rank, prefix=f"{LAYERS}.{number}")


class LlamaWithBottlenecks(WithBottlenecks, LlamaForCausalLM):  # type: ignore[misc]
    """vLLM's Llama with layers of zeros."""


class MistralWithBottlenecks(WithBottlenecks, MistralForCausalLM):  # type: ignore[misc]
    """vLLM's Mistral with layers of zeros."""


class Qwen2WithBottlenecks(WithBottlenecks, Qwen2ForCausalLM):  # type: ignore[misc]
    """vLLM's Qwen2 with layers of zeros."""


class Qwen3WithBottlenecks(WithBottlenecks, Qwen3ForCausalLM):  # type: ignore[misc]
    """vLLM's Qwen3 with layers of zeros."""
