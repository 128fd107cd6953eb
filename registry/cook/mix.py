"""Mixing: the ingredients of a recipe become tensors with a report, or the bytes of the same recipe cooked before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from registry.adapters import sites_of
from registry.adapters.loadable import LoadableAdapter, Tensors
from registry.adapters.weights import adapter_digest, load_tensors, save_tensors
from registry.context import BaseModel, Registry
from registry.errors import Incompatible, Internal, InvalidRecipe
from registry.mixing import MIXINGS
from registry.mixing.auto import choose_mixing
from registry.mixing.compat import SoupIngredient, by_digest
from registry.mixing.report import TOLERANCE, ExactMixture, report_of
from registry.spec import (
    AdapterConfig,
    BaseShape,
    CookRequest,
    MergeMixing,
    Mixing,
    MixReport,
    Recipe,
    RecipeIngredient,
)


@dataclass(frozen=True)
class Mixed:
    """A finished mixture: recipe, tensors and stored bytes; `cached` when it was cooked before.

    `why` says why it was mixed so, where the request left that open. `replaces` is the digest that the recipe gave
    before, where LAPACK gives the same tensors in other bytes now.
    """

    base: BaseModel
    parts: tuple[SoupIngredient, ...]
    recipe: Recipe
    config: AdapterConfig
    tensors: Tensors
    data: bytes
    digest: str
    report: MixReport
    cached: bool
    why: str
    replaces: str | None = None

    @property
    def adapter(self) -> LoadableAdapter:
        """The mixture as an adapter that can be scored, whether or not anything is stored under its digest yet."""
        return LoadableAdapter(self.digest, self.config, lambda: self.tensors, self.report.size_bytes)

    @property
    def is_single(self) -> bool:
        """One ingredient at weight 1 is that adapter, not a soup."""
        alone = len(self.parts) == 1 and self.recipe.mixing.scale == "1" and self.parts[0].layers is None
        return alone and self.recipe.tuning is None and self.config == self.parts[0].config

    @property
    def is_merge(self) -> bool:
        """The adapter of a bank of experts."""
        return isinstance(self.recipe.mixing, MergeMixing) and self.recipe.tuning is None


@dataclass(frozen=True)
class Planned:
    """A recipe before it is mixed: its ingredients in the order of their digests, and the configuration of the soup."""

    parts: tuple[SoupIngredient, ...]
    recipe: Recipe
    config: AdapterConfig
    shape: BaseShape

    def make(self) -> tuple[Tensors, MixReport]:
        """The soup's tensors and the report on them; every ingredient is read once."""
        exact = ExactMixture(self.config, self.shape, self.recipe.mixing)
        method = MIXINGS[self.recipe.mixing.method]
        tensors = method.mix([exact.watched(part) for part in self.parts], self.recipe.mixing)
        return tensors, report_of(self.parts, self.recipe, self.config, tensors, shape=self.shape, exact=exact)

    def digest_of(self, tensors: Tensors) -> str:
        """The digest of the soup that they are."""
        return adapter_digest(self.shape.fingerprint, self.config, tensors)


def planned(parts: Sequence[SoupIngredient], mixing: Mixing, shape: BaseShape) -> Planned:
    """The recipe of ingredients that can be mixed so; raises InvalidRecipe for factors that are not of its sites."""
    _check_layers(parts, shape)
    ordered = tuple(by_digest(parts))
    recipe = Recipe(
        base_fingerprint=shape.fingerprint,
        ingredients=tuple(
            RecipeIngredient(
                digest=part.digest,
                weight=part.weight,
                layers=part.layers,
                statistic=None if part.statistic is None else part.statistic.blob,
            )
            for part in ordered
        ),
        mixing=MIXINGS[mixing.method].resolved(ordered, mixing, shape),
    )
    return Planned(ordered, recipe, MIXINGS[recipe.mixing.method].result(ordered, recipe.mixing), shape)


def mix_ingredients(
    registry: Registry, base: BaseModel, parts: tuple[SoupIngredient, ...], *, request: CookRequest
) -> Mixed:
    """Settle on a mixing, check, then mix, or take the bytes of the same recipe cooked before.

    Raises Incompatible with all reasons at once.
    """
    choice = choose_mixing(parts, request.mixing, max_width=request.max_width)
    check_base(parts, base)
    plan = planned(parts, choice.mixing, base.shape)
    recipe = plan.recipe
    with registry.database.read() as catalogue:
        known = catalogue.soups.recipe(recipe.digest)
    cached = known is not None and registry.blobs.is_whole(known.weights_blob)
    if known is not None and cached:
        data = registry.blobs.read(known.weights_blob)
        tensors: Tensors = load_tensors(data)
        report = known.report
    else:
        tensors, report = plan.make()
        data = save_tensors(tensors)
    digest = plan.digest_of(tensors)
    replaces = known.adapter_digest if known is not None and known.adapter_digest != digest else None
    if known is not None and replaces is not None and not _agrees(report, known.report):
        raise Internal(f"recipe {recipe.digest} gave {replaces} before and {digest} now")
    return Mixed(base, plan.parts, recipe, plan.config, tensors, data, digest, report, cached, choice.reason, replaces)


def _agrees(report: MixReport, before: MixReport) -> bool:
    """Return True if a soup made by LAPACK is, to the tolerance, as far from the exact mixture as before."""
    if not MIXINGS[report.method].by_lapack:
        return False
    if report.residual is None or before.residual is None:
        return report.residual == before.residual
    return abs(report.residual - before.residual) <= TOLERANCE


def check_base(parts: Sequence[SoupIngredient], base: BaseModel) -> None:
    """Raises Incompatible where they, who are of one base model, are of another state of it."""
    fingerprint = base.shape.fingerprint
    if parts[0].base_fingerprint != fingerprint:
        raise Incompatible(
            f"{parts[0].ref} was made for another state of base model {base.entry.id!r} "
            f"({parts[0].base_fingerprint[:19]} and not {fingerprint[:19]}).",
            param="recipe",
        )


def _check_layers(parts: Sequence[SoupIngredient], shape: BaseShape) -> None:
    """Raises InvalidRecipe where factors by site are not for exactly the sites of their adapter."""
    for part in parts:
        if part.layers is None:
            continue
        sites = sites_of(part.config, shape)
        missing, unknown = sorted(sites - part.layers.keys()), sorted(part.layers.keys() - sites)
        if missing or unknown:
            wrong = f"lack {missing[0]}" if missing else f"name {unknown[0]}, where it has nothing"
            raise InvalidRecipe(
                f"The 'layers' of {part.ref} {wrong}; it needs a factor for each of its {len(sites)} sites.",
                param="recipe",
            )
