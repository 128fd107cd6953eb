"""The exact mixture as one adapter: bottlenecks or ranks side by side (docs/explanation/methods.md#mixing).

The soup's output is the weighted mean of its ingredients' outputs in every layer, whatever they started from:

- bottlenecks (one structure): D = [D_i diag(gamma_i)], c = [D_i beta_i + c_i], U = [w_i s_i U_i], u = sum w_i s_i u_i,
  with Bapna-Firat's LayerNorms folded into the projections (gamma 1, beta 0) and the ingredients' scales s_i into U;
  Houlsby's trained LayerNorms replace the base's, so they have to be equal;
- LoRA: A = [A_i], B = [w_i s_i B_i] with s_i = alpha_i / rank_i (rsLoRA: / sqrt(rank_i)), alpha = rank; a module that
  an ingredient leaves alone is one to which it adds nothing.

`scale` multiplies U and u, or B. One ingredient as it is at weight 1 and scale 1 is that adapter, bit for bit.
Bit-identical on every machine: element-wise products and sums in fixed order in double precision, rounded once to
fp32; no BLAS (docs/decisions/0018). The result is fp32 whatever the ingredients are: it is made for exactness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.errors import InvalidRecipe
from registry.soup.compat import Part, by_digest, members_of, methods_of, structure_reasons
from registry.soup.finite import cast_finite
from registry.spec import (
    AdapterConfig,
    BankConfig,
    BottleneckConfig,
    ConcatMixing,
    FusionConfig,
    LoraConfig,
    LoraModule,
    UnionConfig,
)

_FOLDED = frozenset({"bottleneck", "scale", "groups", "rslora", "pruned"})
"""What may differ between ingredients: widths add up, factors are folded into the weights, and zeros are values."""
_TRAINED_NORM = ".base_norm."


def check(parts: Sequence[Part], _mixing: ConcatMixing) -> list[str]:
    """Every reason why these cannot be concatenated; empty when they can.

    Reads tensors only of Houlsby adapters with trained LayerNorms, and only where nothing else stands against them.
    """
    reasons = structure_reasons(parts, may_differ=_may_differ(parts[0].config))
    return reasons + _method_reasons(parts) or _norm_reasons(parts)


def can_be_joined(config: AdapterConfig) -> bool:
    """Whether adapters of this method have widths or ranks that can be put side by side."""
    return isinstance(config, BottleneckConfig | LoraConfig)


def _method_reasons(parts: Sequence[Part]) -> list[str]:
    others = [part for part in parts if not (can_be_joined(part.config) or isinstance(part.config, BankConfig))]
    if not others:
        return []
    config = others[0].config
    inside = f" of {methods_of(config)}" if isinstance(config, UnionConfig) else ""
    what = f"{others[0].ref} is a {config.method}{inside}"
    return [f"Bottlenecks and LoRAs can be put side by side as one adapter, and {what}."]


def kind_of(config: AdapterConfig) -> object:
    """Equal for configurations that can be concatenated, as far as configurations say."""
    needed = sorted(type(config).model_fields.keys() - _may_differ(config))
    return tuple((name, getattr(config, name)) for name in needed)


def _may_differ(config: AdapterConfig) -> frozenset[str]:
    has_norm = isinstance(config, BottleneckConfig) and config.structure == "bapna_firat"
    return _FOLDED if has_norm else _FOLDED | {"layer_norm_eps"}


def _norm_reasons(parts: Sequence[Part]) -> list[str]:
    """The trained LayerNorms of Houlsby adapters have to be equal: two of them cannot be in one place."""
    config = parts[0].config
    if len(parts) < 2 or not (isinstance(config, BottleneckConfig) and config.structure == "houlsby"):
        return []
    first = _trained_norms(parts[0]) if config.trained_norms else {}
    others = [part.ref for part in parts[1:] if config.trained_norms and not _equal(first, _trained_norms(part))]
    if not others:
        return []
    shown = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    return [f"The trained LayerNorms differ: those of {shown} are not those of {parts[0].ref}."]


def _trained_norms(part: Part) -> dict[str, Tensor]:
    return {name: tensor.to(torch.float32) for name, tensor in part.load().items() if _TRAINED_NORM in name}


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def is_itself(parts: Sequence[Part], mixing: ConcatMixing) -> bool:
    """One ingredient as it is: nothing to fold, nothing to round."""
    return len(parts) == 1 and mixing.scale == "1"


def width(parts: Sequence[Part]) -> int:
    """The bottleneck, or the largest rank of any module, that concatenating these would give."""
    return max(_added_up(parts).values(), default=0)


def width_of(config: AdapterConfig) -> int:
    """An adapter's bottleneck, or its largest rank; of a union its widest member's; 0 where there is neither."""
    if isinstance(config, FusionConfig):
        return width_of(config.member)
    return max((size for one in members_of(config) for size in _widths(one).values()), default=0)


def _added_up(parts: Sequence[Part]) -> dict[str, int]:
    """Widths by place, side by side."""
    total: dict[str, int] = {}
    for part in parts:
        for place, size in _widths(part.config).items():
            total[place] = total.get(place, 0) + size
    return total


def _widths(config: AdapterConfig) -> dict[str, int]:
    """What adds up when adapters are put side by side: the bottleneck, or the rank by module; else nothing."""
    if isinstance(config, BottleneckConfig):
        return {"": config.bottleneck}
    if isinstance(config, LoraConfig):
        return {path: module.rank for path, module in config.modules().items()}
    return {}


def result(parts: Sequence[Part], mixing: ConcatMixing) -> AdapterConfig:
    """The soup's structure: widths or ranks added up, scales folded into the weights, without masks.

    Raises InvalidRecipe where modules of so many different ranks are more than a LoRA can have.
    """
    first = by_digest(parts)[0].config
    if is_itself(parts, mixing):
        return first
    if isinstance(first, BottleneckConfig):
        return first.model_copy(update={"bottleneck": width(parts), "scale": 1.0, "pruned": None})
    ranks = _added_up(parts)
    try:
        return LoraConfig.of({path: LoraModule(rank, float(rank)) for path, rank in ranks.items()})
    except ValidationError as error:
        raise InvalidRecipe(f"The LoRAs are too many for one: {error.errors()[0]['msg']}.", param="recipe") from None


def mix(parts: Sequence[Part], mixing: ConcatMixing) -> dict[str, Tensor]:
    """The concatenated tensors, fp32; all ingredients are in memory at once, as their values are in the soup.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or a value leaves the range of fp32.
    """
    if is_itself(parts, mixing):
        return dict(parts[0].load())
    ordered = by_digest(parts)
    loaded = [part.load() for part in ordered]
    factors = [_factor(part, mixing) for part in ordered]
    if isinstance(ordered[0].config, BottleneckConfig):
        mixed = _bottlenecks(loaded, [factor * _scale(part) for factor, part in zip(factors, ordered, strict=True)])
    else:
        mixed = _loras([part.config for part in ordered], loaded, factors)
    return cast_finite(mixed, torch.float32)


def _factor(part: Part, mixing: ConcatMixing) -> float:
    return float(part.weight) * float(mixing.scale)


def _scale(part: Part) -> float:
    assert isinstance(part.config, BottleneckConfig)
    return part.config.scale


# --- bottlenecks ----------------------------------------------------------------------------------


def _bottlenecks(loaded: Sequence[Mapping[str, Tensor]], factors: Sequence[float]) -> dict[str, Tensor]:
    """Every site of every layer, and Houlsby's trained LayerNorms, which are the same in all."""
    mixed: dict[str, Tensor] = {}
    for name, tensor in loaded[0].items():
        if _TRAINED_NORM in name:
            mixed[name] = tensor
        elif name.endswith(".up.weight"):
            site = name.removesuffix("up.weight")
            mixed |= _site([{n: t for n, t in one.items() if n.startswith(site)} for one in loaded], factors, site)
    return mixed


def _site(loaded: Sequence[Mapping[str, Tensor]], factors: Sequence[float], site: str) -> dict[str, Tensor]:
    """One bottleneck from those of the ingredients, in double precision."""
    down, bias, up, out = [], [], [], torch.zeros(())
    for number, (tensors, factor) in enumerate(zip(loaded, factors, strict=True)):
        values = {name.removeprefix(site): tensor.to(torch.float64) for name, tensor in tensors.items()}
        rows, shift = values["down.weight"], values["down.bias"]  # (m, d), (m)
        if "norm.weight" in values:
            shift = shift + _dot(rows, values["norm.bias"])
            rows = rows * values["norm.weight"]
        down.append(rows)
        bias.append(shift)
        up.append(values["up.weight"] * factor)
        out = values["up.bias"] * factor if number == 0 else out + values["up.bias"] * factor
    mixed = {
        "down.weight": torch.cat(down),
        "down.bias": torch.cat(bias),
        "up.weight": torch.cat(up, 1),
        "up.bias": out,
    }
    if site + "norm.weight" in loaded[0]:
        mixed |= {"norm.weight": torch.ones_like(out), "norm.bias": torch.zeros_like(out)}
    return {site + name: tensor for name, tensor in mixed.items()}


def _dot(rows: Tensor, vector: Tensor) -> Tensor:
    """rows (m, d) times vector (d), added up from first to last: `cumsum` has no other order on any machine."""
    return torch.from_numpy(np.cumsum((rows * vector).numpy(), axis=1)[:, -1].copy())


# --- LoRA -----------------------------------------------------------------------------------------


def _loras(
    configs: Sequence[AdapterConfig], loaded: Sequence[Mapping[str, Tensor]], factors: Sequence[float]
) -> dict[str, Tensor]:
    """A and B of every module that any ingredient has, ranks in the order of the ingredients."""
    down: dict[str, list[Tensor]] = {}
    up: dict[str, list[Tensor]] = {}
    for config, tensors, factor in zip(configs, loaded, factors, strict=True):
        assert isinstance(config, LoraConfig)
        for path, module in config.modules().items():
            down.setdefault(path, []).append(tensors[PREFIX + path + LORA_A].to(torch.float32))
            grown = tensors[PREFIX + path + LORA_B].to(torch.float64) * (factor * config.scaling(module))
            up.setdefault(path, []).append(grown)
    return {PREFIX + path + LORA_A: torch.cat(some) for path, some in down.items()} | {
        PREFIX + path + LORA_B: torch.cat(some, 1) for path, some in up.items()
    }
