"""Where a base model's layers, sub-layers and norms are, by its family (`model_type`).

The only place that knows module paths of base models: another family is another entry of `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import nn

from registry.errors import Incompatible


@dataclass(frozen=True)
class Family:
    """Paths of sub-modules: `layers` from the model, the others from one layer.

    The outputs of `attention` and `ffn` (or the first items of their output tuples) are what the layer adds to
    its residual stream. `norms` names the layer's LayerNorms in order; empty where they are of another kind.
    """

    layers: str
    attention: str
    ffn: str
    norms: tuple[str, ...]


FAMILIES: dict[str, Family] = {
    "gpt2": Family(layers="transformer.h", attention="attn", ffn="mlp", norms=("ln_1", "ln_2")),
}


@dataclass(frozen=True)
class LayerSites:
    """The modules of one layer that adapters hook."""

    block: nn.Module
    attention: nn.Module
    ffn: nn.Module
    norms: tuple[nn.Module, ...]


def family_of(model_type: str) -> Family:
    """The family's entry; raises Incompatible naming the known ones."""
    family = FAMILIES.get(model_type)
    if family is None:
        raise Incompatible(
            f"Adapters cannot be attached to base models of family {model_type!r}; known families: "
            f"{', '.join(sorted(FAMILIES))}.",
            param="base_model",
        )
    return family


def model_type_of(model: nn.Module) -> str:
    """`config.model_type` of a transformers model; empty where there is none."""
    return str(getattr(getattr(model, "config", None), "model_type", ""))


def layer_sites(model: nn.Module) -> Sequence[LayerSites]:
    """The hookable modules of every layer, first to last; raises Incompatible for an unknown family."""
    family = family_of(model_type_of(model))
    blocks = cast(nn.ModuleList, model.get_submodule(family.layers))
    return [
        LayerSites(
            block=block,
            attention=block.get_submodule(family.attention),
            ffn=block.get_submodule(family.ffn),
            norms=tuple(block.get_submodule(path) for path in family.norms),
        )
        for block in blocks
    ]
