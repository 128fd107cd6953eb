"""What stands between adapters and one soup: every reason at once, found before a tensor is mixed.

Adapters of different base fingerprint, structure, scale or initialisation are never silently averaged.
The mixing methods' checks are made of these; the values come from the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from registry.adapters.loadable import LoadableAdapter
from registry.spec import (
    AdapterConfig,
    BankConfig,
    BottleneckConfig,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    MergeMixing,
    Mixing,
    Provenance,
    UnionConfig,
)


@dataclass(frozen=True, kw_only=True)
class Part(LoadableAdapter):
    """One ingredient as the catalogue knows it; `weight` is its canonical decimal."""

    adapter_id: int
    ref: str
    weight: str
    base_fingerprint: str
    provenance: Provenance
    dtype: str


def by_digest(parts: Sequence[Part]) -> list[Part]:
    """The order in which ingredients are mixed: the same soup in whatever order they were named."""
    return sorted(parts, key=lambda part: part.digest)


def scale_of(mixing: Mixing) -> str | None:
    """The canonical decimal that a mixing multiplies updates with; None of a merge, which has none."""
    return None if isinstance(mixing, MergeMixing) else mixing.scale


def differing(
    parts: Sequence[Part], what: str, key: Callable[[Part], object], show: Callable[[Part], object] | None = None
) -> list[str]:
    """One sentence if `key` is not the same for all parts, naming an example of each value; else nothing."""
    examples: dict[object, Part] = {}
    for part in parts:
        examples.setdefault(key(part), part)
    if len(examples) < 2:
        return []
    shown = "; ".join(f"{part.ref} has {(show or key)(part)}" for part in list(examples.values())[:4])
    return [f"{what} differ: {shown}."]


def structure_reasons(parts: Sequence[Part], *, may_differ: Collection[str] = ()) -> list[str]:
    """Reasons of base, method and structure; fields of the configuration in `may_differ` are not looked at.

    Adapters of several methods have no fields in common, so that the method is then the only reason beside the base;
    and of a bank nothing else counts than that it is one.
    """
    bases = differing(parts, "The base models", lambda part: part.base_fingerprint[:19])
    return bases + (bank_reasons(parts) or _config_reasons(parts, may_differ))


def _config_reasons(parts: Sequence[Part], may_differ: Collection[str]) -> list[str]:
    methods = differing(parts, "The methods", lambda part: methods_of(part.config))
    if methods:
        return methods
    reasons = []
    inside, _ = _inside(parts[0].config)
    for members in zip(*(_inside(part.config)[1] for part in parts), strict=True):
        alone = [replace(part, config=member) for part, member in zip(parts, members, strict=True)]
        reasons += _config_reasons(alone, may_differ)
    for name in type(parts[0].config).model_fields:
        if name not in may_differ and name != inside:
            what, show = _SHOWN.get(name, (f"The values of '{name}'", None))
            reasons += differing(parts, what, attrgetter(f"config.{name}"), show)
    return reasons


def _inside(config: AdapterConfig) -> tuple[str, tuple[AdapterConfig, ...]]:
    """The field of a configuration that holds other configurations, compared field by field; and those."""
    if isinstance(config, UnionConfig):
        return "members", config.members
    return ("member", (config.member,)) if isinstance(config, FusionConfig) else ("", ())


def methods_of(config: AdapterConfig) -> str:
    """The method of an adapter; those of its members for a union."""
    return " + ".join(one.method for one in members_of(config))


def structures_of(config: AdapterConfig) -> str:
    """The same with a bottleneck's structure: adapters that differ in it are not mixed."""
    members = members_of(config)
    return " + ".join(one.structure if isinstance(one, BottleneckConfig) else one.method for one in members)


def members_of(config: AdapterConfig) -> tuple[AdapterConfig, ...]:
    """The members of a union, or the adapter itself."""
    return config.members if isinstance(config, UnionConfig) else (config,)


def average_reasons(parts: Sequence[Part], scale: str) -> list[str]:
    """Reasons of methods whose tensors have no average, or nothing that `scale` could multiply.

    One adapter as it is at scale 1 is itself, whatever its method.
    """
    reasons = []
    fusions = [part.ref for part in parts if isinstance(part.config, FusionConfig)]
    if fusions and (len(parts) > 1 or scale != "1"):
        reasons.append(f"{fusions[0]} is a fusion, whose attention was trained over members of its own.")
    fixed = [part.ref for part in parts if not _scalable(part.config)]
    if fixed and scale != "1":
        reasons.append(f"A scale of {scale} multiplies up-projections, and not all of {fixed[0]} goes through one.")
    return reasons


def _scalable(config: AdapterConfig) -> bool:
    """Whether all that an adapter adds inside of the base goes through an up-projection; a head adds nothing there."""
    methods = {one.method for one in members_of(config)}
    return methods <= {"bottleneck", "lora", "head"} and methods != {"head"}


def bank_reasons(parts: Sequence[Part]) -> list[str]:
    """Reasons of banks: what they are mixed by is their merge, which is made of each by itself before."""
    banks = [part.ref for part in parts if isinstance(part.config, BankConfig)]
    if not banks:
        return []
    shown = ", ".join(banks[:4]) + (f" and {len(banks) - 4} more" if len(banks) > 4 else "")
    return [f"{shown} {'are banks' if len(banks) > 1 else 'is a bank'} of experts, which only its merge can stand for."]


def lora_text(part: Part) -> str:
    """What a LoRA sits on, for people: `24 modules (c_attn, c_proj) of rank 8 and alpha 16`."""
    assert isinstance(part.config, LoraConfig)
    modules = part.config.modules()
    names = sorted({path.rpartition(".")[2] for path in modules})
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    ranks, alphas = ({one.rank for one in modules.values()}, {one.alpha for one in modules.values()})
    return f"{len(modules)} modules ({shown}) of rank {_span(ranks)} and alpha {_span(alphas)}"


def _labels_text(part: Part) -> str:
    """The labels of a head, for people: `3 labels (no, yes, maybe)`."""
    assert isinstance(part.config, HeadConfig)
    labels = part.config.labels
    return f"{len(labels)} labels ({', '.join(labels[:6])}{', ...' if len(labels) > 6 else ''})"


_SHOWN: dict[str, tuple[str, Callable[[Part], object] | None]] = {
    "groups": ("The LoRAs' modules and ranks", lora_text),
    "labels": ("The labels", _labels_text),
}
"""Fields of configurations that are told in words of their own."""


def _span(values: Collection[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def init_reasons(parts: Sequence[Part]) -> list[str]:
    """Reasons of initialisation: unknown matches nothing, not even unknown (AdapterSoup, appendix A.1)."""
    if len(parts) < 2:
        return []
    unknown = [part.ref for part in parts if part.provenance.init_hash is None]
    reasons = []
    if unknown:
        shown = ", ".join(unknown[:4]) + (f" and {len(unknown) - 4} more" if len(unknown) > 4 else "")
        reasons.append(f"The initialisation of {shown} is unknown.")
    known = [part for part in parts if part.provenance.init_hash is not None]
    return reasons + differing(known, "The initialisations", lambda part: (part.provenance.init_hash or "")[:19])
