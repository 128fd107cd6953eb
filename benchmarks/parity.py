"""Every base family with every adapter method, computed a second way: PEFT for LoRA, patched layers for bottlenecks.

Called by `benchmarks.breadth`. The second way shares nothing with the first but the tensors: it knows the families'
module paths by itself, and replaces the `forward` of the base's sub-modules by formulas written out from the papers.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from demo.results import Row
from registry.adapters import attached, expected_tensors, from_tensors, paper_config
from registry.base_model.architecture import shape_from
from registry.formats.peft.lora import lora_config
from registry.names import sha256_digest
from registry.spec import AdapterConfig, BaseShape, BottleneckConfig

TOLERANCE = 1e-5
"""Largest difference of logits, relative to the largest logit."""
CHANGED = 1e-2
"""What an adapter has to change at least, so that two ways of doing nothing do not agree."""
METHODS: dict[str, BottleneckConfig | None] = {
    "houlsby": paper_config("houlsby", bottleneck=5),
    "pfeiffer": paper_config("pfeiffer", bottleneck=5),
    "bapna_firat": paper_config("bapna_firat", bottleneck=5),
    "parallel": paper_config("parallel", bottleneck=5),
    "lora": None,
}
"""Every structure with its paper's activation and scale; a LoRA's configuration is PEFT's."""
IDS = torch.tensor([[0, 5, 17, 61, 3, 40, 42, 7], [0, 8, 8, 30, 21, 60, 62, 1]])

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Places:
    """Paths of a family's layers, and of the sub-modules in one layer."""

    layers: str
    attention: str
    feed_in: str
    feed_out: str
    norms: tuple[str, str]


_LLAMA = Places("model.layers", "self_attn", "mlp", "mlp", ("input_layernorm", "post_attention_layernorm"))
PLACES = {
    "gpt2": Places("transformer.h", "attn", "mlp", "mlp", ("ln_1", "ln_2")),
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "mistral": _LLAMA,
    "gpt_neox": Places(
        "gpt_neox.layers", "attention", "mlp", "mlp", ("input_layernorm", "post_attention_layernorm")
    ),
    "opt": Places(
        "model.decoder.layers", "self_attn", "fc1", "fc2", ("self_attn_layer_norm", "final_layer_norm")
    ),
}  # fmt: skip


def measure() -> Iterator[Row]:
    """One row for every family and method."""
    for family in PLACES:
        model, shape = tiny(family)
        for method, config in METHODS.items():
            difference, changed = _compare(family, model, shape, config)
            parity = difference <= TOLERANCE and changed >= CHANGED
            yield {
                "family": family, "method": method, "relative_difference": difference, "changed": changed,
                "parity": parity,
            }  # fmt: skip


def tiny(family: str) -> tuple[nn.Module, BaseShape]:
    """A random model of two layers and its shape."""
    torch.manual_seed(list(PLACES).index(family))
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
    if family == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    own = {"opt": {"word_embed_proj_dim": 32, "ffn_dim": 48}, "gpt2": {}}.get(family, {"intermediate_size": 48})
    grouped = {"num_key_value_heads": 2} if PLACES[family] is _LLAMA else {}
    window = {"sliding_window": 4} if family == "mistral" else {}
    fields = {
        **sizes,
        **own,
        **grouped,
        **window,
        "vocab_size": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": None,
    }
    config: Any = AutoConfig.for_model(family, **fields)
    shape = shape_from(config, sha256_digest(family.encode()), family)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim == 2 else 1.0).add_(torch.randn_like(parameter), alpha=0.05)
    model.requires_grad_(False).eval()
    return model, shape


@torch.no_grad()
def _compare(
    family: str, model: nn.Module, shape: BaseShape, bottleneck: BottleneckConfig | None
) -> tuple[float, float]:
    """Largest difference between the two ways, and what the adapter changes, relative to the largest logit."""
    second = copy.deepcopy(model)
    config: AdapterConfig
    if bottleneck is None:
        second, config, tensors = _with_peft(second, fan_in_fan_out=family == "gpt2")
    else:
        config, tensors = bottleneck, _random(expected_tensors(bottleneck, shape))
        _patch(family, second, bottleneck, tensors)
    plain = model(IDS).logits
    with attached(model, from_tensors(config, shape, tensors)):
        found = model(IDS).logits
    largest = float(plain.abs().max())
    return float((found - second(IDS).logits).abs().max()) / largest, float((found - plain).abs().max()) / largest


def _random(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Values far from the identity; weights of norms around 1."""
    draw = np.random.default_rng(3)
    return {
        name: torch.from_numpy(draw.normal(float("norm" in name and "weight" in name), 0.3, size).astype(np.float32))
        for name, size in shapes.items()
    }


# --- the second way -------------------------------------------------------------------------------


def _with_peft(model: nn.Module, *, fan_in_fan_out: bool) -> tuple[nn.Module, AdapterConfig, Tensors]:
    """PEFT's model on every linear module, its own configuration as it would lie on disk, and its tensors."""
    import peft

    config = peft.LoraConfig(
        r=3, lora_alpha=7, target_modules="all-linear", use_rslora=True, task_type="CAUSAL_LM",
        fan_in_fan_out=fan_in_fan_out,
    )  # fmt: skip
    wrapped: Any = peft.get_peft_model(model, config)
    values = _random({name: tuple(one.shape) for name, one in peft.get_peft_model_state_dict(wrapped).items()})
    peft.set_peft_model_state_dict(wrapped, values)
    on_disk = json.loads(json.dumps(wrapped.peft_config["default"].to_dict(), default=sorted))
    return wrapped.eval(), lora_config(on_disk, {name: tuple(one.shape) for name, one in values.items()}), values


def _patch(family: str, model: nn.Module, config: BottleneckConfig, tensors: Tensors) -> None:
    """Put a bottleneck adapter into the forward methods of a model's sub-modules."""
    places = PLACES[family]
    for number, layer in enumerate(model.get_submodule(places.layers).children()):
        prefix = f"layers.{number}."
        own = {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}
        feed_in, feed_out = layer.get_submodule(places.feed_in), layer.get_submodule(places.feed_out)
        if config.structure == "parallel":
            _add_from_argument(feed_in, feed_out, _formula(config, own, "ffn"))
            continue
        _add(feed_out, _formula(config, own, "ffn"))
        if config.structure == "houlsby":
            _add(layer.get_submodule(places.attention), _formula(config, own, "attention"))
            for j, name in enumerate(places.norms):
                norm = layer.get_submodule(name)
                norm.load_state_dict({part: own[f"base_norm.{j}.{part}"] for part in norm.state_dict()})


def _formula(config: BottleneckConfig, own: Tensors, site: str) -> Callable[[Tensor], Tensor]:
    """s (U g(D x + b_D) + b_U), with Bapna-Firat's LayerNorm before."""

    def update(x: Tensor) -> Tensor:
        if config.structure == "bapna_firat":
            centred = x - x.mean(-1, keepdim=True)
            x = centred / (centred.square().mean(-1, keepdim=True) + config.layer_norm_eps).sqrt()
            x = x * own[f"{site}.norm.weight"] + own[f"{site}.norm.bias"]
        z = x @ own[f"{site}.down.weight"].T + own[f"{site}.down.bias"]
        z = 0.5 * z * (1 + torch.erf(z / math.sqrt(2))) if config.activation == "gelu" else z.clamp(min=0)
        return config.scale * (z @ own[f"{site}.up.weight"].T + own[f"{site}.up.bias"])

    return update


def _add(module: Any, update: Callable[[Tensor], Tensor]) -> None:
    """Add to a module's output what it gives for that output."""
    forward = module.forward

    def changed(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        if isinstance(out, tuple):
            return (out[0] + update(out[0]), *out[1:])
        return out + update(out)

    module.forward = changed


def _add_from_argument(read: Any, module: Any, update: Callable[[Tensor], Tensor]) -> None:
    """Add to a module's output what it gives for the argument of a module before it, or of the same."""
    kept: list[Tensor] = []
    reading, forward = read.forward, module.forward

    def keep(x: Tensor) -> Any:
        kept.append(x)
        return reading(x)

    def changed(x: Tensor) -> Any:
        out = forward(x) if read is not module else keep(x)
        return out + update(kept.pop())

    if read is not module:
        read.forward = keep
    module.forward = changed
