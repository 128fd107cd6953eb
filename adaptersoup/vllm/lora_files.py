"""The files of a bottleneck as vLLM loads it: a LoRA on layers of zeros, in PEFT's form.

Used by `soup export --vllm` and the plugin's cache.
"""

from __future__ import annotations

from registry.adapters.bottleneck_lora import lora_of
from registry.adapters.weights import load_tensors, save_tensors
from registry.formats import CONFIG_FILE, WEIGHTS_FILE
from registry.formats.directory import config_json
from registry.formats.peft.writing import peft_config
from registry.spec import BottleneckConfig


def lora_files(config: BottleneckConfig, weights: bytes, model_type: str) -> dict[str, bytes]:
    """The LoRA's files in fp32 by name, for a base model of the family `model_type`.

    Raises Incompatible for bottlenecks without such layers.
    """
    lora, tensors = lora_of(config, load_tensors(weights), model_type)
    values = save_tensors({name: tensor.float() for name, tensor in tensors.items()})
    return {CONFIG_FILE: config_json(peft_config(lora)), WEIGHTS_FILE: values}
