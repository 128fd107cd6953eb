"""Soups of random LoRAs by this project and by PEFT, and the updates that each makes.

Used by `benchmarks.selection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from registry.adapters import expected_tensors
from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.errors import Internal
from registry.mixing import MIXINGS
from registry.mixing.compat import SoupIngredient
from registry.spec import AdapterConfig, BaseShape, LoraConfig, Mixing, Provenance, canonical_weights

MIXTURE = "mixture"


def parts_of(config: AdapterConfig, shape: BaseShape, weights: Sequence[float]) -> list[SoupIngredient]:
    """Random ingredients of one structure at these weights."""
    return [
        SoupIngredient(
            adapter_id=number, ref=f"team/a{number}@1", digest=f"sha256:{number:064x}", weight=weight,
            base_fingerprint=shape.fingerprint, config=config, provenance=Provenance(), dtype="F32",
            load=partial(_random, config, shape, number),
        )
        for number, weight in enumerate(canonical_weights(weights))
    ]  # fmt: skip


def _random(config: AdapterConfig, shape: BaseShape, seed: int) -> dict[str, Tensor]:
    draw = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(draw.normal(0, 0.05, sizes).astype(np.float32))
        for name, sizes in expected_tensors(config, shape).items()
    }


def mixed(parts: Sequence[SoupIngredient], mixing: Mixing) -> tuple[AdapterConfig, dict[str, Tensor]]:
    """A soup, as `cook` makes it; raises Internal for ingredients that cannot be mixed."""
    method = MIXINGS[mixing.method]
    reasons = method.check(parts, mixing)
    if reasons:
        raise Internal(f"the ingredients cannot be mixed: {reasons[0]}")
    return method.result(parts, mixing), method.mix(parts, mixing)


def updates(config: AdapterConfig, tensors: Tensors, factor: float) -> dict[str, Tensor]:
    """factor s B A of each module, (outputs, inputs), in double precision."""
    assert isinstance(config, LoraConfig)
    return {
        path: factor
        * config.scaling(module)
        * (tensors[PREFIX + path + LORA_B].double() @ tensors[PREFIX + path + LORA_A].double())
        for path, module in config.modules().items()
    }


def error(found: Tensors, exact: Tensors) -> float:
    """Frobenius norm of the difference of the updates of all modules, over that of the exact ones."""
    difference = sum(float((found[path] - exact[path]).square().sum()) for path in exact)
    return float((difference / sum(float(one.square().sum()) for one in exact.values())) ** 0.5)


class PeftMixer:
    """A base model with LoRAs of one rank, in PEFT; `mix` mixes them, and `updates` are those of the mixture."""

    def __init__(self, model: nn.Module, config: LoraConfig, loras: Sequence[Tensors]) -> None:
        import peft

        self._config = config
        rank, alpha = next(iter(config.modules().values()))
        theirs = peft.LoraConfig(r=rank, lora_alpha=int(alpha), target_modules=list(config.modules()))
        self._names = [f"number{number}" for number in range(len(loras))]
        wrapped: Any = peft.get_peft_model(model, theirs, adapter_name=self._names[0])
        for name in self._names[1:]:
            wrapped.add_adapter(name, theirs)
        for name, tensors in zip(self._names, loras, strict=True):
            peft.set_peft_model_state_dict(wrapped, dict(tensors), adapter_name=name)
        self._wrapped = wrapped

    def mix(self, weights: Sequence[float], **how: Any) -> None:
        """Make the mixture, which replaces an earlier one; `how` are arguments of `add_weighted_adapter`."""
        if MIXTURE in self._wrapped.peft_config:
            self._wrapped.delete_adapter(MIXTURE)
        self._wrapped.add_weighted_adapter(self._names, list(weights), MIXTURE, **how)

    def updates(self) -> dict[str, Tensor]:
        """Of each module, (outputs, inputs), in double precision."""
        modules = self._wrapped.base_model.model
        return {path: modules.get_submodule(path).get_delta_weight(MIXTURE).double() for path in self._config.modules()}
