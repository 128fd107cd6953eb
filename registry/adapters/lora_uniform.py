"""A LoRA with one rank and one scale for all of its modules, as engines want it that read no pattern of them.

Called by `soup export`. What it computes is the same: smaller ranks are filled up with zeros, and scales go into B.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.spec import LoraConfig, LoraModule


def is_uniform(config: LoraConfig) -> bool:
    """Whether all modules have one rank and one scale already."""
    modules = config.modules().values()
    return len({(module.rank, config.scaling(module)) for module in modules}) == 1


def uniform(config: LoraConfig, tensors: Tensors) -> tuple[LoraConfig, dict[str, Tensor]]:
    """The configuration and tensors in fp32, with the largest rank and scale 1 everywhere."""
    modules = config.modules()
    rank = max(module.rank for module in modules.values())
    found: dict[str, Tensor] = {}
    for path, module in modules.items():
        a, b = (tensors[f"{PREFIX}{path}{end}"].to(torch.float32) for end in (LORA_A, LORA_B))
        missing = rank - module.rank
        found[f"{PREFIX}{path}{LORA_A}"] = pad(a, (0, 0, 0, missing))  # (rank, inputs)
        found[f"{PREFIX}{path}{LORA_B}"] = pad(b * config.scaling(module), (0, missing))  # (outputs, rank)
    return LoraConfig.of(dict.fromkeys(modules, LoraModule(rank, rank))), found
