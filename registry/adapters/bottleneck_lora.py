"""Write a bottleneck as LoRAs on linear layers of zeros, and compute with such layers, for engines that have LoRA only.

With the scale and Bapna-Firat's LayerNorm folded into its tensors, a bottleneck adds U g(D x + b) + u, where x is
normalised by a LayerNorm without parameters for Bapna-Firat. A layer of the base model gets two linear layers of zeros,
which the adapter's LoRAs turn into

- down: [x, 1] -> [D x + b, C], with A = [[D, b], [0, C]] and B the identity;
- up: g(down) -> U g(D x + b) + u, with A the identity and B = [U, u / C].

C is a number with g(C) = C. Since g(0) = 0, tokens without the adapter get exactly zeros. A trained norm's weight w
(Houlsby) is one layer more, of the constant 1 alone: 1 -> [w, 1], with A = [[1]] and B = [[w], [1]]. Its last output
is 1 for tokens whose norm is replaced.

The layers of one kind of bottleneck serve adapters of any width below the layers' rank. Called by `adaptersoup.vllm`,
whose models have the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from registry.adapters.bottleneck import ACTIVATIONS
from registry.adapters.bottleneck_mixing import join_bottlenecks
from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.adapters.mixture import constant_factor
from registry.adapters.sites import FAMILIES
from registry.errors import Incompatible, InvalidParameter
from registry.spec import BottleneckConfig, LoraConfig, LoraModule

CONSTANT = 32.0
"""A power of two, which bf16 represents, with g(C) = C for each activation, to 1e-13."""
LAYER_NORM_EPS = 1e-5
"""Of the LayerNorm without parameters, which all Bapna-Firat adapters of a batch share."""
LAYERS = FAMILIES["llama"].layers
"""The path of the base model's layers, in which a LoRA's modules are named: that of Llama and its relatives."""

Structure = Literal["bapna_firat", "pfeiffer", "parallel", "houlsby"]
Source = Literal["module", "residual"]
Activation = Literal["relu", "gelu", "swish"]

Layer = Callable[[Tensor], Tensor]
"""A linear layer of zeros with the LoRAs of a batch: (..., inputs) -> (..., outputs)."""


@dataclass(frozen=True)
class BottleneckKind:
    """A kind of bottlenecks: those that compute with the same layers of zeros."""

    structure: Structure
    input: Source
    activation: Activation

    @property
    def name(self) -> str:
        """The name that its layers' names begin with, as in `pfeiffer_residual_relu`."""
        return "_".join((self.structure, *(("residual",) if self.input == "residual" else ()), self.activation))

    def sites(self) -> dict[str, str]:
        """The beginning of the names of a site's two layers, by the site (`ffn`, `attention`) in canonical names."""
        sites = {"ffn": self.name}
        return sites | {"attention": f"{self.name}_attention"} if self.structure == "houlsby" else sites

    def norms(self) -> tuple[str, ...]:
        """Names of the layers of trained norms, in the order of the norms."""
        return (f"{self.name}_norm_0", f"{self.name}_norm_1") if self.structure == "houlsby" else ()

    def layers(self, hidden_size: int, rank: int) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the layers of zeros in each layer of the base model, by name."""
        shapes: dict[str, tuple[int, int]] = {}
        for site in self.sites().values():
            shapes |= {f"{site}_down": (hidden_size + 1, rank), f"{site}_up": (rank, hidden_size)}
        return shapes | dict.fromkeys(self.norms(), (1, hidden_size + 1))

    def update(self, source: Tensor, down: Layer, up: Layer) -> Tensor:
        """The update (..., hidden) of a `source` of that shape, by the two layers of a site."""
        if self.structure == "bapna_firat":
            source = F.layer_norm(source, source.shape[-1:], eps=LAYER_NORM_EPS)
        return up(ACTIVATIONS[self.activation](down(F.pad(source, (0, 1), value=1.0))))


def trained_norm(normalised: Tensor, unscaled: Tensor, norm: Layer) -> Tensor:
    """A norm's output (..., hidden), with the trained weight where an adapter has one.

    `normalised` is the base's output, `unscaled` the same without the norm's weight.
    """
    scales = norm(unscaled.new_ones((*unscaled.shape[:-1], 1)))
    weight, is_trained = scales[..., :-1], scales[..., -1:]
    return normalised * (1 - is_trained) + unscaled * weight


KINDS = {
    kind.name: kind
    for kind in (
        BottleneckKind(structure, source, activation)
        for structure, source, activation in product(get_args(Structure), get_args(Source), get_args(Activation))
        if (structure, source) != ("houlsby", "residual")
    )
}
"""All kinds by name."""


def kinds_named(names: tuple[str, ...]) -> list[BottleneckKind]:
    """The kinds of these names, each once; raises InvalidParameter, which lists all names."""
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise InvalidParameter(f"{unknown[0]!r} is no kind of bottleneck; kinds are {', '.join(KINDS)}.")
    return [KINDS[name] for name in dict.fromkeys(names)]


def kind_of(config: BottleneckConfig) -> BottleneckKind:
    """The kind of an adapter; raises Incompatible for an epsilon that its layers do not have."""
    if config.structure == "bapna_firat" and config.layer_norm_eps != LAYER_NORM_EPS:
        raise Incompatible(
            f"The LayerNorm of this adapter has the epsilon {config.layer_norm_eps:g}; as a LoRA on layers of zeros it "
            f"would be computed with {LAYER_NORM_EPS:g}."
        )
    return BottleneckKind(config.structure, config.input, config.activation)


def lora_of(config: BottleneckConfig, tensors: Tensors) -> tuple[LoraConfig, dict[str, Tensor]]:
    """The LoRA on layers of zeros, in double precision, that computes what a bottleneck does.

    Raises Incompatible for epsilons without such layers.
    """
    kind = kind_of(config)
    joined = join_bottlenecks([config], [tensors], [constant_factor(1.0)])
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    for name in joined:
        layer, _, rest = name.removeprefix("layers.").partition(".")
        path = f"{LAYERS}.{layer}"
        if rest.endswith(".up.weight"):
            site = kind.sites()[rest.removesuffix(".up.weight")]
            factors |= _site_factors(joined, name.removesuffix("up.weight"), f"{path}.{site}")
        elif rest.startswith("base_norm."):
            weight = joined[name].to(torch.float64)
            trained = torch.cat([weight, weight.new_ones(1)])
            factors[f"{path}.{kind.norms()[int(rest.split('.')[1])]}"] = trained.new_ones(1, 1), trained[:, None]
    ranks = {path: LoraModule(rank=len(a), alpha=len(a)) for path, (a, _) in factors.items()}
    pairs: dict[str, Tensor] = {}
    for path, (a, b) in factors.items():
        pairs |= {f"{PREFIX}{path}{LORA_A}": a, f"{PREFIX}{path}{LORA_B}": b}
    return LoraConfig.of(ranks), pairs


def _site_factors(joined: Mapping[str, Tensor], site: str, path: str) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of the two layers of one site, by their paths."""
    rows, shift, columns, out = (joined[site + name] for name in ("down.weight", "down.bias", "up.weight", "up.bias"))
    identity = torch.eye(len(rows) + 1, dtype=rows.dtype)
    constant = CONSTANT * F.pad(rows.new_ones(1), (rows.shape[1], 0))  # [0, C]
    down = torch.cat([torch.cat([rows, shift[:, None]], 1), constant[None]])
    up = torch.cat([columns, out[:, None] / CONSTANT], 1)
    return {f"{path}_down": (down, identity), f"{path}_up": (identity, up)}
