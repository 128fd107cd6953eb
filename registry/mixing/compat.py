"""The ingredients of a soup, and the reasons why they cannot be mixed, all of them before a tensor is mixed.

Adapters of different base fingerprint, structure, scale or initialisation are never silently averaged. Each mixing
method's check combines these reasons; the values come from the catalogue. `auto.exclusion_reasons` and
`auto.choose_mixing`, which every cook calls, have the checks of all methods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from registry.adapters.loadable import LoadableAdapter, Tensors
from registry.adapters.mixture import Factor, constant_factor
from registry.spec import Provenance


@dataclass(frozen=True)
class Statistic:
    """A statistic of an ingredient and its sample (`spec.weighing`): its blob, and a function that reads it."""

    blob: str
    load: Callable[[], Tensors] = field(compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class SoupIngredient(LoadableAdapter):
    """One ingredient of a soup as the catalogue knows it; `weight` is its canonical decimal.

    `layers` are factors by site that multiply the weight (`RecipeIngredient`). `sample` is the digest of its sample
    where the text of that is stored, `statistic` the statistic that the mixing method needs of it.
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

    @property
    def described(self) -> str:
        """A clause that names the adapter and its kind."""
        return f"{self.ref} is a {self.config.described}"

    def load_statistic(self) -> Tensors:
        """The tensors of its statistic, of an ingredient for a mixing method that has a `statistic_kind`."""
        assert self.statistic is not None
        return self.statistic.load()

    def factor(self, scale: float) -> Factor:
        """The factor of its output by site: its weight there, times `scale`."""
        weight, layers = float(self.weight) * scale, self.layers
        return constant_factor(weight) if layers is None else lambda site: weight * float(layers[site])


def by_digest(ingredients: Sequence[SoupIngredient]) -> list[SoupIngredient]:
    """The order in which ingredients are mixed: the same soup in whatever order they were named."""
    return sorted(ingredients, key=lambda ingredient: ingredient.digest)


def listed(refs: Sequence[str]) -> str:
    """The first four of these for a message, and how many more there are."""
    return ", ".join(refs[:4]) + (f" and {len(refs) - 4} more" if len(refs) > 4 else "")


def shortened(values: Sequence[str]) -> str:
    """The first eight of these for a message, with dots in place of the rest."""
    return ", ".join(values[:8]) + (", ..." if len(values) > 8 else "")


def differing(
    ingredients: Sequence[SoupIngredient],
    subject: str,
    key: Callable[[SoupIngredient], object],
    *,
    field: str | None = None,
) -> list[str]:
    """One sentence if `key` is not the same for all ingredients, with an example of each value; else nothing.

    Values of a `field` of the configuration are shown as that configuration shows them, digests by their beginning.
    """
    examples: dict[object, SoupIngredient] = {}
    for ingredient in ingredients:
        examples.setdefault(key(ingredient), ingredient)
    if len(examples) < 2:
        return []
    described = [
        f"{example.ref} has {_short(value) if field is None else example.config.format_field(field)}"
        for value, example in list(examples.items())[:4]
    ]
    return [f"{subject} differ: {'; '.join(described)}."]


def _short(value: object) -> object:
    return value[:19] if isinstance(value, str) and value.startswith("sha256:") else value


def structure_reasons(ingredients: Sequence[SoupIngredient], *, may_differ: Collection[str] = ()) -> list[str]:
    """Reasons of base, method and structure; fields of the configuration in `may_differ` are not compared.

    Adapters of several methods have no fields in common, so that the method is then the only reason beside the base.
    Nothing else about a bank is compared.
    """
    bases = differing(ingredients, "The base models", attrgetter("base_fingerprint"))
    return bases + (bank_reasons(ingredients) or _config_reasons(ingredients, may_differ))


def _config_reasons(ingredients: Sequence[SoupIngredient], may_differ: Collection[str]) -> list[str]:
    methods = differing(ingredients, "The methods", attrgetter("config.methods"))
    if methods:
        return methods
    reasons = []
    inner_field, _ = ingredients[0].config.inner
    for members in zip(*(ingredient.config.inner[1] for ingredient in ingredients), strict=True):
        alone = [replace(ingredient, config=member) for ingredient, member in zip(ingredients, members, strict=True)]
        reasons += _config_reasons(alone, may_differ)
    for name in type(ingredients[0].config).model_fields:
        if name not in may_differ and name != inner_field:
            subject = ingredients[0].config.field_names.get(name, f"The values of '{name}'")
            reasons += differing(ingredients, subject, attrgetter(f"config.{name}"), field=name)
    return reasons


def average_reasons(ingredients: Sequence[SoupIngredient], scale: str) -> list[str]:
    """Reasons of methods whose tensors have no average, or nothing that `scale` could multiply.

    One adapter alone at scale 1 is itself, whatever its method.
    """
    reasons = []
    without = [
        f"{ingredient.ref} {ingredient.config.no_average}."
        for ingredient in ingredients
        if ingredient.config.no_average is not None
    ]
    if without and (len(ingredients) > 1 or scale != "1"):
        reasons.append(without[0])
    fixed = [ingredient.ref for ingredient in ingredients if not ingredient.config.scalable]
    if fixed and scale != "1":
        reasons.append(f"A scale of {scale} multiplies up-projections, and not all of {fixed[0]} goes through one.")
    return reasons


def layer_reasons(ingredients: Sequence[SoupIngredient]) -> list[str]:
    """Reasons against factors by layer, which multiply outputs: an average has one weight for all tensors."""
    layered = [ingredient.ref for ingredient in ingredients if ingredient.layers is not None]
    return [f"{layered[0]} has factors by layer, which only 'concat' and 'recompress' can keep."] if layered else []


def not_joinable_reasons(ingredients: Sequence[SoupIngredient], method: str) -> list[str]:
    """Reasons of structures that are neither bottlenecks nor LoRAs, for sentences that begin with `method`."""
    for ingredient in ingredients:
        if not ingredient.config.joinable:
            return [f"{method} is of bottlenecks and LoRAs, and {ingredient.described}: mix by 'average'."]
    return []


def statistic_reasons(ingredients: Sequence[SoupIngredient], method: str) -> list[str]:
    """Reasons of ingredients without a stored sample, for a method that reads statistics of them."""
    without = [
        ingredient.ref for ingredient in ingredients if ingredient.sample is None and ingredient.statistic is None
    ]
    if not without:
        return []
    subject = f"{listed(without)} {'have no sample' if len(without) > 1 else 'has no sample'} whose text is kept"
    return [f"{subject}, and {method} goes by what the text of each says: push with 'texts', or mix by 'average'."]


def bank_reasons(ingredients: Sequence[SoupIngredient]) -> list[str]:
    """Reasons of banks of experts, each of which has to be merged by itself before it is mixed."""
    banks = [ingredient.ref for ingredient in ingredients if ingredient.config.merged is not None]
    if not banks:
        return []
    are = "are banks" if len(banks) > 1 else "is a bank"
    return [f"{listed(banks)} {are} of experts, which only its merge can stand for."]


def init_reasons(ingredients: Sequence[SoupIngredient]) -> list[str]:
    """Reasons of initialisation: unknown matches nothing, not even unknown (AdapterSoup, appendix A.1)."""
    if len(ingredients) < 2:
        return []
    unknown = [ingredient.ref for ingredient in ingredients if ingredient.provenance.init_hash is None]
    reasons = [f"The initialisation of {listed(unknown)} is unknown."] if unknown else []
    hashed = [ingredient for ingredient in ingredients if ingredient.provenance.init_hash is not None]
    return reasons + differing(hashed, "The initialisations", attrgetter("provenance.init_hash"))
