"""Mix the ingredients of a plan into tensors with a report, or read the bytes of the same recipe cooked before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from registry.adapters import sites_of
from registry.adapters.loadable import LoadableAdapter, Tensors
from registry.adapters.weights import adapter_digest, load_tensors, save_tensors
from registry.context import BaseModel, Registry
from registry.errors import Incompatible, Internal, InvalidRecipe
from registry.mixing import MIXINGS, recompress
from registry.mixing.auto import choose_mixing
from registry.mixing.compat import SoupIngredient, by_digest
from registry.mixing.report import TOLERANCE, ExactMixture, report_of
from registry.spec import (
    AdapterConfig,
    BaseShape,
    ConcatMixing,
    MergeMixing,
    Mixing,
    MixingRequest,
    MixReport,
    Recipe,
    RecipeIngredient,
    RecompressMixing,
)


@dataclass(frozen=True)
class MixPlan:
    """Ingredients with their weights, the mixing method or `auto`, and the most values a soup may be wide."""

    ingredients: tuple[SoupIngredient, ...]
    mixing: MixingRequest
    max_width: int

    def narrowed(self) -> MixPlan | None:
        """This plan with `recompress`, as wide as one ingredient; None for one ingredient, or if it is too wide."""
        assert isinstance(self.mixing, ConcatMixing)
        mixing = RecompressMixing(scale=self.mixing.scale)
        if len(self.ingredients) < 2 or recompress.too_wide(self.ingredients, mixing, self.max_width):
            return None
        return replace(self, mixing=mixing)


@dataclass(frozen=True)
class Mixed:
    """A finished mixture: recipe, tensors and stored bytes; `cached` when it was cooked before.

    `reason` says why this method was taken, where the request left it open. `replaces` is the digest that the recipe
    gave before, where LAPACK gives the same tensors in other bytes now.
    """

    base: BaseModel
    ingredients: tuple[SoupIngredient, ...]
    recipe: Recipe
    config: AdapterConfig
    tensors: Tensors
    data: bytes
    digest: str
    report: MixReport
    cached: bool
    reason: str
    replaces: str | None = None

    @property
    def adapter(self) -> LoadableAdapter:
        """The mixture as an adapter that can be scored, whether or not anything is stored under its digest yet."""
        return LoadableAdapter(self.digest, self.config, lambda: self.tensors)

    @property
    def is_single(self) -> bool:
        """One ingredient at weight 1 is that adapter, not a soup."""
        alone = len(self.ingredients) == 1 and self.recipe.mixing.scale == "1" and self.ingredients[0].layers is None
        return alone and self.recipe.tuning is None and self.config == self.ingredients[0].config

    @property
    def is_merge(self) -> bool:
        """True for the merge of a bank of experts."""
        return isinstance(self.recipe.mixing, MergeMixing) and self.recipe.tuning is None


@dataclass(frozen=True)
class PlannedRecipe:
    """A recipe before it is mixed: its ingredients in the order of their digests, and the configuration of the soup."""

    ingredients: tuple[SoupIngredient, ...]
    recipe: Recipe
    config: AdapterConfig
    shape: BaseShape

    def mix_tensors(self) -> Tensors:
        """The soup's tensors, without the report on them, which takes several times as long."""
        return MIXINGS[self.recipe.mixing.method].mix(self.ingredients, self.recipe.mixing)

    def mix(self) -> tuple[Tensors, MixReport]:
        """The soup's tensors and the report on them; every ingredient is read once."""
        exact = ExactMixture(self.config, self.shape, self.recipe.mixing)
        method = MIXINGS[self.recipe.mixing.method]
        tensors = method.mix([exact.watched(ingredient) for ingredient in self.ingredients], self.recipe.mixing)
        return tensors, report_of(self.ingredients, self.recipe, self.config, tensors, shape=self.shape, exact=exact)

    def digest_of(self, tensors: Tensors) -> str:
        """The adapter digest of the soup with these tensors."""
        return adapter_digest(self.shape.fingerprint, self.config, tensors)


def plan_recipe(ingredients: Sequence[SoupIngredient], mixing: Mixing, shape: BaseShape) -> PlannedRecipe:
    """The recipe of these ingredients; raises InvalidRecipe for factors by layer that do not fit an adapter."""
    _check_layers(ingredients, shape)
    ordered = tuple(by_digest(ingredients))
    recipe = Recipe(
        base_fingerprint=shape.fingerprint,
        ingredients=tuple(
            RecipeIngredient(
                digest=ingredient.digest,
                weight=ingredient.weight,
                layers=ingredient.layers,
                statistic=None if ingredient.statistic is None else ingredient.statistic.blob,
            )
            for ingredient in ordered
        ),
        mixing=MIXINGS[mixing.method].resolved(ordered, mixing, shape),
    )
    return PlannedRecipe(ordered, recipe, MIXINGS[recipe.mixing.method].result(ordered, recipe.mixing), shape)


def choose_recipe(base: BaseModel, plan: MixPlan) -> tuple[PlannedRecipe, str]:
    """The recipe of a plan, and why its method was taken where the plan leaves that open; reads no tensor.

    Raises Incompatible with all reasons at once.
    """
    choice = choose_mixing(plan.ingredients, plan.mixing, max_width=plan.max_width)
    check_fingerprint(plan.ingredients, base)
    return plan_recipe(plan.ingredients, choice.mixing, base.shape), choice.reason


def mix(registry: Registry, base: BaseModel, plan: MixPlan) -> Mixed:
    """Mix a plan, or read the bytes of the same recipe cooked before; raises as `choose_recipe` does."""
    planned, reason = choose_recipe(base, plan)
    recipe = planned.recipe
    with registry.database.read() as catalogue:
        stored = catalogue.soups.recipe(recipe.digest)
    cached = stored is not None and registry.blobs.is_whole(stored.weights_blob)
    if stored is not None and cached:
        data = registry.blobs.read(stored.weights_blob)
        tensors: Tensors = load_tensors(data)
        report = stored.report
    else:
        tensors, report = planned.mix()
        data = save_tensors(tensors)
    digest = planned.digest_of(tensors)
    replaces = stored.adapter_digest if stored is not None and stored.adapter_digest != digest else None
    if stored is not None and replaces is not None and not _agrees(report, stored.report):
        raise Internal(f"recipe {recipe.digest} gave {replaces} before and {digest} now")
    return Mixed(
        base=base,
        ingredients=planned.ingredients,
        recipe=recipe,
        config=planned.config,
        tensors=tensors,
        data=data,
        digest=digest,
        report=report,
        cached=cached,
        reason=reason,
        replaces=replaces,
    )


def _agrees(report: MixReport, stored: MixReport) -> bool:
    """Return True if a soup made by LAPACK is, to the tolerance, as far from the exact mixture as before."""
    if not MIXINGS[report.method].by_lapack:
        return False
    if report.residual is None or stored.residual is None:
        return report.residual == stored.residual
    return abs(report.residual - stored.residual) <= TOLERANCE


def check_fingerprint(ingredients: Sequence[SoupIngredient], base: BaseModel) -> None:
    """Raises Incompatible where ingredients, all of one base model, are of another state of it."""
    fingerprint = base.shape.fingerprint
    if ingredients[0].base_fingerprint != fingerprint:
        raise Incompatible(
            f"{ingredients[0].ref} was made for other weights of base model {base.entry.id!r} (fingerprint "
            f"{ingredients[0].base_fingerprint[:19]} instead of {fingerprint[:19]}).",
            param="recipe",
        )


def _check_layers(ingredients: Sequence[SoupIngredient], shape: BaseShape) -> None:
    """Raises InvalidRecipe where factors by site are not for exactly the sites of their adapter."""
    for ingredient in ingredients:
        if ingredient.layers is None:
            continue
        sites = sites_of(ingredient.config, shape)
        missing, unknown = sorted(sites - ingredient.layers.keys()), sorted(ingredient.layers.keys() - sites)
        if missing or unknown:
            wrong = f"lack {missing[0]}" if missing else f"name {unknown[0]}, where it has nothing"
            raise InvalidRecipe(
                f"The 'layers' of {ingredient.ref} {wrong}; it needs a factor for each of its {len(sites)} sites.",
                param="recipe",
            )
