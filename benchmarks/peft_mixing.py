"""Mixtures of LoRAs by PEFT, and the updates that a LoRA makes: what ours are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.spec import AdapterConfig, LoraConfig

MIXTURE = "mixture"


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
        """Make the mixture, in the place of an earlier one; `how` is what `add_weighted_adapter` takes."""
        if MIXTURE in self._wrapped.peft_config:
            self._wrapped.delete_adapter(MIXTURE)
        self._wrapped.add_weighted_adapter(self._names, list(weights), MIXTURE, **how)

    def updates(self) -> dict[str, Tensor]:
        """Of each module, (outputs, inputs), in double precision."""
        modules = self._wrapped.base_model.model
        return {path: modules.get_submodule(path).get_delta_weight(MIXTURE).double() for path in self._config.modules()}
