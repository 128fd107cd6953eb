"""Find a base model's layers, sub-layers and norms by its family (`model_type`).

The only module with paths of base models' modules: another family is another entry of `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import nn

from registry.errors import Incompatible


@dataclass(frozen=True)
class Family:
    """The module paths of a family of base models: `layers` from the model, the others from one layer.

    The layer adds the outputs of `attention` and `ffn` (or the first items of their output tuples) to its residual
    stream. The feed-forward module's argument is that of `ffn_input`: of another module than `ffn` where the two are
    not in one. `norms` names the layer's norms in order. The last is the one before the feed-forward module, or with
    `post_norm` (BERT) the one after it. With `post_norm` each norm reads the sum of a sub-module's output and the
    residual stream. With `rms_norms` they are RMSNorms (a weight, no bias), otherwise LayerNorms.
    """

    layers: str
    attention: str
    ffn: str
    norms: tuple[str, ...]
    ffn_input: str
    rms_norms: bool = False
    post_norm: bool = False


_LLAMA = Family(
    layers="model.layers",
    attention="self_attn",
    ffn="mlp",
    ffn_input="mlp",
    norms=("input_layernorm", "post_attention_layernorm"),
    rms_norms=True,
)
_BERT = Family(
    layers="encoder.layer",
    attention="attention.output.dense",
    ffn="output.dense",
    ffn_input="intermediate",
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    post_norm=True,
)

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "distilbert": Family(
        layers="transformer.layer",
        attention="attention.out_lin",
        ffn="ffn.lin2",
        ffn_input="ffn.lin1",
        norms=("sa_layer_norm", "output_layer_norm"),
        post_norm=True,
    ),
    "gpt2": Family(layers="transformer.h", attention="attn", ffn="mlp", ffn_input="mlp", norms=("ln_1", "ln_2")),
    "gpt_neox": Family(
        layers="gpt_neox.layers",
        attention="attention",
        ffn="mlp",
        ffn_input="mlp",
        norms=("input_layernorm", "post_attention_layernorm"),
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "opt": Family(
        layers="model.decoder.layers",
        attention="self_attn",
        ffn="fc2",
        ffn_input="fc1",
        norms=("self_attn_layer_norm", "final_layer_norm"),
    ),
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
}


@dataclass(frozen=True)
class LayerSites:
    """The modules of one layer that adapters hook."""

    block: nn.Module
    attention: nn.Module
    ffn: nn.Module
    ffn_input: nn.Module
    norms: tuple[nn.Module, ...]
    rms_norms: bool
    post_norm: bool

    def check_norms(self) -> None:
        """Raises Incompatible where a norm is not of the family's kind, with a weight (and a bias) to train."""
        for norm in self.norms:
            bias = getattr(norm, "bias", None) is not None
            is_kind = hasattr(norm, "variance_epsilon") if self.rms_norms else isinstance(norm, nn.LayerNorm)
            if not is_kind or getattr(norm, "weight", None) is None or bias == self.rms_norms:
                kind = "RMSNorms with a weight" if self.rms_norms else "LayerNorms with weight and bias"
                raise Incompatible(
                    f"Adapters that act on this family's norms need {kind}; one of this base model is "
                    f"none ({type(norm).__name__}).",
                    param="base_model",
                )


def family_of(model_type: str) -> Family:
    """The family's entry; raises Incompatible, which lists the known families."""
    family = FAMILIES.get(model_type)
    if family is None:
        raise Incompatible(
            f"Bottleneck adapters cannot be attached to base models of family {model_type!r}; known families: "
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
            ffn_input=block.get_submodule(family.ffn_input),
            norms=tuple(block.get_submodule(path) for path in family.norms),
            rms_norms=family.rms_norms,
            post_norm=family.post_norm,
        )
        for block in blocks
    ]
