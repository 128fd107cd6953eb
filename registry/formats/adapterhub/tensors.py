"""Translate names and shapes of tensors between AdapterHub's library and the canonical ones.

Called by `convert`; knows neither files nor JSON. Layer i has, at `output_adapters` (our `ffn`) and
`attention_adapters`, below `<layers>.<i>.<site>.adapters.<name>.`: `adapter_down.0.weight` (m, d) and `.bias` (m),
`adapter_up.weight` (d, m) and `.bias` (d); with a LayerNorm before it, that as `adapter_norm_before` and again as
`adapter_down.0`, the projection then being `adapter_down.1`; with a learned scaling, `scaling` (1) or (d). BERT's two
sites are called `output` and `attention.output`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from registry.adapters import tensor_problems
from registry.adapters.weights import DTYPES
from registry.errors import Incompatible
from registry.formats.adapterhub.options import Options
from registry.tensor_file import refuse

MAX_WIDTH = 65536
SHOWN = 4
_SITES = {"output_adapters": "ffn", "attention_adapters": "attention"}
_SITE_NAME = re.compile(rf"(\d{{1,4}})\.(?:{'|'.join(_SITES)})\.[\w.]+", re.ASCII)
_CANONICAL = re.compile(r"layers\.(\d{1,4})\.(ffn|attention)\.(norm|down|up)\.(weight|bias)", re.ASCII)


class Family(NamedTuple):
    """A family of base models: the library's class with a head for tokens, and the path of its layers.

    The prefix is missing in checkpoints of a model without its head. `sites` are the family's names of a layer's two
    sites; `post_norm` is for layers that normalise after their sub-modules.
    """

    model_class: str
    prefix: str
    layers: str
    sites: Mapping[str, str] = {"attention_adapters": "attention_adapters", "output_adapters": "output_adapters"}
    post_norm: bool = False


_BERT_SITES = {"attention_adapters": "attention.output", "output_adapters": "output"}
FAMILIES = {
    "gpt2": Family("GPT2LMHeadModel", "transformer", "h"),
    "llama": Family("LlamaForCausalLM", "model", "layers"),
    "mistral": Family("MistralForCausalLM", "model", "layers"),
    "bert": Family("BertForMaskedLM", "bert", "encoder.layer", _BERT_SITES, post_norm=True),
    "roberta": Family("RobertaForMaskedLM", "roberta", "encoder.layer", _BERT_SITES, post_norm=True),
    "distilbert": Family("DistilBertForMaskedLM", "distilbert", "transformer.layer", post_norm=True),
}


@dataclass(frozen=True)
class Layout:
    """The library's names of an adapter's tensors: `prefix.layers.<i>.<site>.adapters.name.`."""

    family: Family
    name: str
    options: Options

    def sites(self) -> tuple[str, ...]:
        """The sites of a layer that have an adapter."""
        both = self.options.structure == "houlsby"
        return ("attention_adapters", "output_adapters") if both else ("output_adapters",)

    def down(self) -> str:
        """The name of the down-projection, which depends on a LayerNorm before it."""
        return "adapter_down.1" if self.options.structure == "bapna_firat" else "adapter_down.0"

    def leaves(self, width: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the tensors at one site."""
        shapes: dict[str, tuple[int, ...]] = {
            f"{self.down()}.weight": (width, hidden_size),
            f"{self.down()}.bias": (width,),
            "adapter_up.weight": (hidden_size, width),
            "adapter_up.bias": (hidden_size,),
        }
        if self.options.structure == "bapna_firat":
            for norm in ("adapter_norm_before", "adapter_down.0"):
                shapes |= {f"{norm}.weight": (hidden_size,), f"{norm}.bias": (hidden_size,)}
        if self.options.scaling != "constant":
            shapes["scaling"] = (1,) if self.options.scaling == "learned" else (hidden_size,)
        return shapes

    def shapes(self, layers: int, *, width: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors of the adapter, by `<layer>.<site>.<leaf>`."""
        leaves = self.leaves(width, hidden_size)
        return {
            f"{i}.{site}.{leaf}": shape
            for i in range(layers)
            for site in self.sites()
            for leaf, shape in leaves.items()
        }


def to_canonical(stored: Mapping[str, Tensor], layout: Layout, *, hidden_size: int) -> tuple[int, dict[str, Tensor]]:
    """The width and canonical tensors of a checkpoint, in their stored dtype; a learned scaling is folded in.

    Raises InvalidWeights with every tensor that is missing, not expected, of another shape or dtype, or not finite.
    """
    tensors = _by_site(stored, layout)
    width = _width(tensors, stored, layout)
    layers = _layers(tensors)
    expected = layout.shapes(layers, width=width, hidden_size=hidden_size)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if problems := tensor_problems(expected, shapes) + _value_problems(tensors):
        raise refuse("weights", problems)
    canonical = dict(_canonical(tensors, layout, layers=layers))
    overflown = [name for name, tensor in canonical.items() if not torch.isfinite(tensor).all()]
    if overflown:
        dtype = str(canonical[overflown[0]].dtype).removeprefix("torch.")
        raise refuse("weights", [f"Its 'scaling' takes {name} beyond {dtype}: store it wider." for name in overflown])
    return width, canonical


def _by_site(stored: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Tensors by `<layer>.<site>.<leaf>`; those that are not the adapter's keep their name."""
    sites = {family_site: site for site, family_site in layout.family.sites.items()}
    pattern = re.compile(
        rf"(?:{re.escape(layout.family.prefix)}\.)?{re.escape(layout.family.layers)}\.(0|[1-9]\d{{0,3}})"
        rf"\.({'|'.join(map(re.escape, sites))})\.adapters\.{re.escape(layout.name)}\.([\w.]+)",
        re.ASCII,
    )
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        match = pattern.fullmatch(name)
        key = f"{match[1]}.{sites[match[2]]}.{match[3]}" if match else name
        tensors[name if key in tensors else key] = tensor
    return tensors


def _layers(names: Iterable[str]) -> int:
    """One more than the highest layer in `<layer>.<site>.<leaf>` names; other names are ignored."""
    return 1 + max((int(match[1]) for match in map(_SITE_NAME.fullmatch, names) if match), default=-1)


def _width(tensors: Mapping[str, Tensor], stored: Mapping[str, Tensor], layout: Layout) -> int:
    downs = {
        name: tensor.shape[0]
        for name, tensor in tensors.items()
        if _SITE_NAME.fullmatch(name) and name.endswith(f".{layout.down()}.weight") and tensor.ndim == 2
    }
    widths = sorted(set(downs.values()))
    if not widths:
        first = _stored_name(f"0.{layout.sites()[-1]}.{layout.down()}.weight", layout)
        problem = f"None of its {len(stored)} tensors is named like {first}; the first is {next(iter(stored))[:120]!r}."
        raise refuse("weights", [problem])
    if not 1 <= widths[0] <= MAX_WIDTH:
        raise refuse("weights", [f"Its bottlenecks are {widths[0]} wide; 1 to {MAX_WIDTH} can be taken."])
    if len(widths) > 1:
        examples = ", ".join(f"{width} in {next(p for p in downs if downs[p] == width)}" for width in widths[:SHOWN])
        more = f", {len(widths) - SHOWN} more" if len(widths) > SHOWN else ""
        raise refuse("weights", [f"Its bottlenecks have several widths ({examples}{more}), and one for all is needed."])
    return widths[0]


def _value_problems(tensors: Mapping[str, Tensor]) -> list[str]:
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    problems = [
        f"Tensor {name[:120]!r} is {tensor.dtype}; float32, float16 and bfloat16 are read."
        for name, tensor in tensors.items()
        if tensor.dtype not in DTYPES.values()
    ]
    if len(dtypes) > 1:
        problems.append(f"Its tensors are of several dtypes ({', '.join(sorted(dtypes))}): store them in one.")
    if problems:
        return problems
    broken = {name: int((~torch.isfinite(tensor)).sum()) for name, tensor in tensors.items()}
    problems = [f"Tensor {name!r} holds {bad} values that are NaN or infinite." for name, bad in broken.items() if bad]
    for name, tensor in tensors.items():
        twin = tensors.get(name.replace("adapter_norm_before", "adapter_down.0"))
        if twin is not None and twin.shape == tensor.shape and not torch.equal(twin, tensor):
            problems.append(f"Tensor {name!r} and its second copy in adapter_down.0 differ.")
    return problems


def _canonical(tensors: Mapping[str, Tensor], layout: Layout, *, layers: int) -> Iterator[tuple[str, Tensor]]:
    """Checked tensors under their canonical names."""
    modules = {"down": layout.down(), "up": "adapter_up"}
    if layout.options.structure == "bapna_firat":
        modules["norm"] = "adapter_norm_before"
    for i in range(layers):
        for site in layout.sites():
            scaling = tensors.get(f"{i}.{site}.scaling")
            for module, stored_module in modules.items():
                for kind in ("weight", "bias"):
                    tensor = tensors[f"{i}.{site}.{stored_module}.{kind}"]
                    if module == "up" and scaling is not None:
                        tensor = _scaled(tensor, scaling)
                    yield f"layers.{i}.{_SITES[site]}.{module}.{kind}", tensor.contiguous()


def _scaled(tensor: Tensor, scaling: Tensor) -> Tensor:
    """U or b_U, rows times `scaling` (1) or (d), in fp32 with one cast at the end."""
    factor = scaling.to(torch.float32).reshape(-1, *[1] * (tensor.ndim - 1))
    return (tensor.to(torch.float32) * factor).to(tensor.dtype)


def from_canonical(tensors: Mapping[str, Tensor], layout: Layout, *, width: int, hidden_size: int) -> dict[str, Tensor]:
    """The library's tensors for canonical ones; raises Incompatible with every wrong name and shape."""
    sites = {site: stored_site for stored_site, site in _SITES.items()}
    stored_modules = {
        "down": (layout.down(),),
        "up": ("adapter_up",),
        "norm": ("adapter_norm_before", "adapter_down.0"),
    }
    by_site: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if match := _CANONICAL.fullmatch(name):
            layer, site, module, kind = match.groups()
            by_site |= {f"{layer}.{sites[site]}.{stored}.{kind}": tensor for stored in stored_modules[module]}
        else:
            by_site[name] = tensor
    layers = _layers(by_site)
    expected = layout.shapes(layers, width=width, hidden_size=hidden_size)
    problems = tensor_problems(expected, {name: tuple(tensor.shape) for name, tensor in by_site.items()})
    if problems or not layers:
        raise Incompatible(
            "The tensors are not those of the adapter's configuration: "
            f"{problems[0] if problems else 'there are none.'}",
            param="tensors",
            problems=problems,
        )
    return {_stored_name(name, layout): by_site[name] for name in expected}


def _stored_name(name: str, layout: Layout) -> str:
    family, (layer, site, leaf) = layout.family, name.split(".", 2)
    return f"{family.prefix}.{family.layers}.{layer}.{family.sites[site]}.adapters.{layout.name}.{leaf}"
