"""LoRAs of the tiny base model, pushed to a server of the tests."""

from __future__ import annotations

import base64
from typing import Any

import torch

from registry.adapters import create
from registry.adapters.weights import save_tensors
from registry.base_model import shape_of
from registry.spec import LoraConfig
from tests.service.servers import World

CONFIG = {
    "method": "lora",
    "groups": [
        {"targets": ["transformer.h.0.attn.c_attn"], "rank": 2, "alpha": 4},
        {"targets": ["transformer.h.1.attn.c_attn"], "rank": 3, "alpha": 5},
    ],
}
"""Rank and alpha differ from module to module, so that nothing may take one of them for all."""

UNIFORM = {
    "method": "lora",
    "groups": [{"targets": [f"transformer.h.{n}.attn.c_attn" for n in (0, 1)], "rank": 3, "alpha": 5}],
}
"""One rank and one alpha for all modules."""


def lora_weights(world: World, *, seed: int, config: dict[str, Any] = CONFIG) -> bytes:
    """Weights of a LoRA that visibly changes what the tiny base says."""
    entry = world.runtime.bases[world.base_id].entry
    module = create(LoraConfig.model_validate(config), shape_of(entry, world.runtime.settings.cache), seed=seed)
    drawn = torch.Generator().manual_seed(seed)
    tensors = {
        name: tensor + 0.5 * torch.randn(tensor.shape, generator=drawn) for name, tensor in module.state_dict().items()
    }
    return save_tensors(tensors)


def push_lora(
    world: World, name: str, *, seed: int, config: dict[str, Any] = CONFIG, **manifest: Any
) -> dict[str, Any]:
    """Push a LoRA; returns the answer."""
    encoded = base64.b64encode(lora_weights(world, seed=seed, config=config)).decode()
    return world.push(name, config=config, files={"adapter_model.safetensors": {"base64": encoded}}, **manifest)
