"""The reasons why adapters cannot be mixed into one soup, all of them at once, found before a tensor is mixed.

Adapters of different base fingerprint, structure, scale or initialisation are never silently averaged.
The mixing methods' checks are made of these; the values come from the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from registry.adapters.loadable import LoadableAdapter, Tensors
from registry.adapters.mixture import Factor, everywhere
from registry.errors import Internal
from registry.spec import Provenance


@dataclass(frozen=True)
class Statistic:
    """What was computed from an ingredient and its sample (`spec.statistics`): its blob, and how that is read."""

    blob: str
    load: Callable[[], Tensors] = field(compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class SoupIngredient(LoadableAdapter):
    """One ingredient of a soup as the catalogue knows it; `weight` is its canonical decimal.

    `layers` are factors by site that multiply the weight (`RecipeIngredient`). `sample` is the digest of its sample
    where the text of that is kept, `statistic` what the mixing method needs to know of it.
    """

    adapter_id: int
    ref: str
    weight: str
    base_fingerprint: str
    provenance: Provenance
    dtype: str
    layers: Mapping[str, str] | None = None
    sample: str | None = None
    statistic: Statistic | None = None

    def measured(self) -> Tensors:
        """The tensors of its statistic; raises Internal where the method should have had none."""
        if self.statistic is None:
            raise Internal(f"{self.ref} was to be mixed by a statistic, and has none.")
        return self.statistic.load()

    def factor(self, scale: float) -> Factor:
        """What its output is multiplied by at each site: its weight there, times `scale`."""
        weight, layers = float(self.weight) * scale, self.layers
        return everywhere(weight) if layers is None else lambda site: weight * float(layers[site])


def by_digest(parts: Sequence[SoupIngredient]) -> list[SoupIngredient]:
    """The order in which ingredients are mixed: the same soup in whatever order they were named."""
    return sorted(parts, key=lambda part: part.digest)


def listed(refs: Sequence[str]) -> str:
    """The first four of these as messages list them, and how many more there are."""
    return ", ".join(refs[:4]) + (f" and {len(refs) - 4} more" if len(refs) > 4 else "")


def differing(
    parts: Sequence[SoupIngredient], what: str, key: Callable[[SoupIngredient], object], *, field: str | None = None
) -> list[str]:
    """One sentence if `key` is not the same for all parts, naming an example of each value; else nothing.

    Where it is a `field` of the configuration, that says how its values are shown.
    """
    examples: dict[object, SoupIngredient] = {}
    for part in parts:
        examples.setdefault(key(part), part)
    if len(examples) < 2:
        return []
    some = list(examples.values())[:4]
    shown = [f"{part.ref} has {key(part) if field is None else part.config.shown(field)}" for part in some]
    return [f"{what} differ: {'; '.join(shown)}."]


def structure_reasons(parts: Sequence[SoupIngredient], *, may_differ: Collection[str] = ()) -> list[str]:
    """Reasons of base, method and structure; fields of the configuration in `may_differ` are not looked at.

    Adapters of several methods have no fields in common, so that the method is then the only reason beside the base;
    and of a bank nothing else counts than that it is one.
    """
    bases = differing(parts, "The base models", lambda part: part.base_fingerprint[:19])
    return bases + (bank_reasons(parts) or _config_reasons(parts, may_differ))


def _config_reasons(parts: Sequence[SoupIngredient], may_differ: Collection[str]) -> list[str]:
    methods = differing(parts, "The methods", attrgetter("config.methods"))
    if methods:
        return methods
    reasons = []
    inside, _ = parts[0].config.inner
    for members in zip(*(part.config.inner[1] for part in parts), strict=True):
        alone = [replace(part, config=member) for part, member in zip(parts, members, strict=True)]
        reasons += _config_reasons(alone, may_differ)
    for name in type(parts[0].config).model_fields:
        if name not in may_differ and name != inside:
            what = parts[0].config.field_names.get(name, f"The values of '{name}'")
            reasons += differing(parts, what, attrgetter(f"config.{name}"), field=name)
    return reasons


def average_reasons(parts: Sequence[SoupIngredient], scale: str) -> list[str]:
    """Reasons of methods whose tensors have no average, or nothing that `scale` could multiply.

    One adapter as it is at scale 1 is itself, whatever its method.
    """
    reasons = []
    without = [f"{part.ref} {part.config.no_average}." for part in parts if part.config.no_average is not None]
    if without and (len(parts) > 1 or scale != "1"):
        reasons.append(without[0])
    fixed = [part.ref for part in parts if not part.config.scalable]
    if fixed and scale != "1":
        reasons.append(f"A scale of {scale} multiplies up-projections, and not all of {fixed[0]} goes through one.")
    return reasons


def layer_reasons(parts: Sequence[SoupIngredient]) -> list[str]:
    """Reasons of factors by layer, which are of outputs: an average has one weight for all tensors."""
    layered = [part.ref for part in parts if part.layers is not None]
    return [f"{layered[0]} has factors by layer, which only 'concat' and 'recompress' can keep."] if layered else []


def not_joinable_reasons(parts: Sequence[SoupIngredient], what: str) -> list[str]:
    """Reasons of structures that are neither bottlenecks nor LoRAs, for a method that `what` names."""
    others = [part for part in parts if not part.config.joinable]
    if not others:
        return []
    return [
        f"{what} is of bottlenecks and LoRAs, and {others[0].ref} is a {others[0].config.described}: mix by 'average'."
    ]


def statistic_reasons(parts: Sequence[SoupIngredient], what: str) -> list[str]:
    """Reasons of a method, which `what` names, that looks at what ingredients do with the text of their own samples."""
    without = [part.ref for part in parts if part.sample is None and part.statistic is None]
    if not without:
        return []
    several = f"{listed(without)} {'have no sample' if len(without) > 1 else 'has no sample'} whose text is kept"
    return [f"{several}, and {what} goes by what the text of each says: push with 'texts', or mix by 'average'."]


def bank_reasons(parts: Sequence[SoupIngredient]) -> list[str]:
    """Reasons of banks: what they are mixed by is their merge, which is made of each by itself before."""
    banks = [part.ref for part in parts if part.config.merged is not None]
    if not banks:
        return []
    are = "are banks" if len(banks) > 1 else "is a bank"
    return [f"{listed(banks)} {are} of experts, which only its merge can stand for."]


def init_reasons(parts: Sequence[SoupIngredient]) -> list[str]:
    """Reasons of initialisation: unknown matches nothing, not even unknown (AdapterSoup, appendix A.1)."""
    if len(parts) < 2:
        return []
    unknown = [part.ref for part in parts if part.provenance.init_hash is None]
    reasons = [f"The initialisation of {listed(unknown)} is unknown."] if unknown else []
    known = [part for part in parts if part.provenance.init_hash is not None]
    return reasons + differing(known, "The initialisations", lambda part: (part.provenance.init_hash or "")[:19])
