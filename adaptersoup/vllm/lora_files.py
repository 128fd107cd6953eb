"""The files of an adapter as vLLM loads it: a LoRA with one rank and one scale, in PEFT's form.

Used by `soup export --vllm` and the plugin's cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.adapters.bottleneck_lora import lora_of
from registry.adapters.lora_ranks import uniform
from registry.adapters.weights import load_tensors, save_tensors
from registry.errors import Incompatible
from registry.formats import CONFIG_FILE, WEIGHTS_FILE
from registry.formats.directory import config_json
from registry.formats.peft.writing import peft_config
from registry.spec import BottleneckConfig, LoraConfig

ARCHITECTURES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Families with a class in `adaptersoup.vllm.models`, and the beginning of its name."""


def uniform_files(config: LoraConfig, weights: bytes, stored: Mapping[str, Any]) -> dict[str, bytes]:
    """The files by name, in fp32, of a LoRA whose modules differ; `stored` is its configuration in PEFT's form.

    Engines read the rank and scale of all modules from `r` and `lora_alpha`.
    """
    _, tensors = uniform(config, load_tensors(weights))
    same = {"r": config.width, "lora_alpha": config.width, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}}
    return {CONFIG_FILE: config_json({**stored, **same}), WEIGHTS_FILE: save_tensors(tensors)}


def lora_files(config: BottleneckConfig, weights: bytes, model_type: str) -> dict[str, bytes]:
    """The files of a bottleneck as a LoRA on layers of zeros, in fp32, by name; `model_type` is the base's family.

    Raises Incompatible for families and epsilons without such layers.
    """
    if model_type not in ARCHITECTURES:
        raise Incompatible(
            f"vLLM's plugin loads bottlenecks of base models of the families {', '.join(ARCHITECTURES)}, and this one "
            f"is of the family {model_type!r}."
        )
    lora, tensors = lora_of(config, load_tensors(weights))
    values = save_tensors({name: tensor.float() for name, tensor in tensors.items()})
    return {CONFIG_FILE: config_json(peft_config(lora)), WEIGHTS_FILE: values}
