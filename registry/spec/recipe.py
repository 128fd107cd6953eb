"""Recipes, cook requests and their results.

Weights are canonical decimals (nine places, summing to exactly 1), so that equal recipes have equal bytes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from registry.names import Digest, digest_of
from registry.spec.adapter import Owner, SampleReport, SampleSource
from registry.spec.decimals import canonical_decimal
from registry.spec.frozen import Frozen, Words
from registry.spec.mixing import AutoMixing, AverageMixing, Mixing, MixingRequest, not_set
from registry.spec.score import Verification
from registry.spec.search import BY_GRADIENTS, HOLDS_OUT, WEIGHING, Budget, Effort, Price, Search, Spent
from registry.spec.selection import PoolRequest, Selection, SelectOptions, SelectorSpec
from registry.spec.tuning import Tuning, TuningOptions


def _not_negative(factor: str) -> str:
    if factor.startswith("-"):
        raise ValueError("must not be negative")
    return factor


LayerFactor = Annotated[
    str,
    BeforeValidator(canonical_decimal),
    AfterValidator(_not_negative),
    WithJsonSchema({"type": ["number", "string"]}),
]
LayerFactors = Annotated[
    dict[Annotated[str, Field(max_length=200)], LayerFactor], Field(min_length=1, max_length=10_000)
]
"""By site: `layers.3.ffn` of a bottleneck (the names of its tensors begin so), of a LoRA a module's path."""


AdapterRef = Annotated[str, Field(max_length=200)]


class RecipeIngredient(Frozen):
    """An adapter digest and its canonical decimal weight.

    Weights sum to 1, but for ingredients with `layers`: then what is added at each site is the weight times that
    site's factor, and every ingredient has them. `statistic` is the digest of what was computed from the
    ingredient's own sample, for methods that mix by it.
    """

    digest: Digest
    weight: str
    layers: LayerFactors | None = Field(default=None, exclude_if=not_set)
    statistic: Digest | None = Field(default=None, exclude_if=not_set)


class MixReport(Frozen):
    """What mixing did: sizes in and out, what the soup costs to run, and how far it is from the exact mixture."""

    method: str
    members: int
    weights: tuple[str, ...]
    parameters: int
    size_bytes: int
    width_in: tuple[int, ...] = ()
    """Bottleneck width or largest LoRA rank of each ingredient, in the order of the recipe."""
    width_out: int = 0
    """That of the soup; 0 in reports written before it was recorded."""
    relative_cost: float
    """Multiplications a token of the base with the soup, over those of the base with a mean ingredient."""
    residual: float | None = None
    """Relative error of the soup's layer outputs against the exact mixture (`scale` times the weighted mean of its
    ingredients'): for LoRA in the Frobenius norm of the weight updates, for bottlenecks on fixed normal probes."""
    residuals: dict[str, float] | None = Field(default=None, exclude_if=not_set)
    """Of a recompressed soup the same at each site; a site to which nothing is added has none."""
    notes: tuple[str, ...] = ()


class Recipe(Frozen):
    """What determines a soup's bytes, and nothing else. Ingredients are sorted by digest.

    With `tuning` the mixture is where a training on a sample started: then the bytes follow from the recipe and the
    text of that sample, up to rounding.
    """

    base_fingerprint: Digest
    ingredients: tuple[RecipeIngredient, ...] = Field(min_length=1)
    mixing: Mixing = AverageMixing()
    seed: int | None = None
    tuning: Tuning | None = Field(default=None, exclude_if=not_set)

    @property
    def digest(self) -> str:
        """The digest by which a soup that was cooked before is found."""
        return digest_of(self)


class WeightedRef(Frozen):
    """An ingredient written by hand: any adapter ref and a weight, normalised over the recipe.

    Weights with factors by site (`layers`), as a stored recipe has them, are taken as they are. So is `statistic`, for
    methods that mix by one: a stored one of that adapter. Without it that of the version's own sample is taken, or
    computed.
    """

    ref: AdapterRef
    weight: float = Field(default=1.0, ge=0)
    layers: LayerFactors | None = None
    statistic: Digest | None = None


class HandRecipe(Frozen):
    """A recipe written by hand."""

    ingredients: tuple[WeightedRef, ...] = Field(min_length=1, max_length=1000, fail_fast=True)

    @model_validator(mode="after")
    def _layers_of_all_or_none(self) -> Self:
        if len({ingredient.layers is None for ingredient in self.ingredients}) > 1:
            raise ValueError("either all ingredients have 'layers' or none")
        return self


MAX_WIDTH = 512
"""The widest mixture by default."""


class CookRequest(Frozen):
    """`POST /v1/soups`: cook from a sample (`sample`, `selector`, `options`, `pool`) or by hand (`recipe`).

    With `verify` the finished soup must beat the base on the sample by one paired standard error, or the
    answer abstains. A recipe by hand is verified where a sample comes with it.

    `effort` says how much may be spent on choosing. Without one a `selector` that is named chooses alone; where none
    is, the server's default is taken, `quick` where it was not set, or `instant` where `verify` is false, a mixing or a
    single adapter is asked for, or the base is an encoder. `instant`: the weights are those of the `posterior`
    selector. `quick`: its best candidates, and the adapters of `also`, are weighed on most of the sample, and what
    comes of it has to beat the base on the rest.
    `thorough`: more of them, longer, mixed in other ways too. With `control` both weigh adapters of noise as well and
    say what those bring. `tune`: the soup of `instant`, or one by hand, is trained on the sample (`tuning`), and has to
    beat the base on passages that were held out; with `keep`, the name of a domain, it goes into the pool as an adapter
    of it. A `budget` cuts what weighing and training do, but not what is held out.
    """

    sample: SampleSource | None = None
    effort: Effort | None = None
    selector: SelectorSpec | None = None
    options: SelectOptions = SelectOptions()
    pool: PoolRequest = PoolRequest()
    recipe: HandRecipe | None = None
    mixing: MixingRequest = AutoMixing()
    max_width: int = Field(default=MAX_WIDTH, ge=1, le=65536)
    """The widest bottleneck (or largest rank of a LoRA) that a mixture may have."""
    name: str | None = Field(default=None, max_length=129)
    """`namespace/name`; a name alone is in the namespace that the key makes things in."""
    owner: Owner | None = None
    """Who answers for the name of what is stored, as a push says it; without it the name keeps the one it has."""
    verify: bool = True
    also: tuple[AdapterRef, ...] = Field(default=(), max_length=16)
    """Adapters that are weighed whether or not they are in the pool."""
    control: bool = False
    budget: Budget | None = None
    tuning: TuningOptions | None = None
    keep: Words | None = Field(default=None, min_length=1, max_length=200)

    @model_validator(mode="after")
    def _sample_or_recipe(self) -> Self:
        if self.recipe is None and self.sample is None:
            raise ValueError("give a 'sample' to choose from, or a 'recipe' by hand")
        if self.recipe is not None and self.selector is not None:
            raise ValueError("a 'recipe' by hand leaves nothing to select: drop 'selector' or 'recipe'")
        if self.recipe is not None and self.effort not in (None, "tune"):
            raise ValueError("a 'recipe' by hand leaves nothing to search: drop 'effort' or 'recipe'")
        if self.effort == "tune" and self.sample is None:
            raise ValueError("effort 'tune' trains on a sample: give one")
        if self.effort != "tune" and (self.tuning is not None or self.keep is not None):
            raise ValueError("'tuning' and 'keep' are for effort 'tune'")
        if self.effort not in WEIGHING and (self.also or self.control):
            raise ValueError("'also' and 'control' are for efforts that weigh adapters: name 'quick' or 'thorough'")
        if self.effort not in BY_GRADIENTS and self.budget is not None:
            raise ValueError("'budget' is for efforts that compute gradients: name 'quick', 'thorough' or 'tune'")
        if self.effort in HOLDS_OUT and not self.verify:
            raise ValueError(
                f"effort '{self.effort}' takes what beats the base on held-out passages: 'verify' cannot be false"
            )
        if self.effort in WEIGHING and self.options.single:
            raise ValueError(
                f"effort '{self.effort}' weighs several adapters: drop 'single', or set 'max_ingredients' to 1"
            )
        if self.effort in WEIGHING and self.mixing != AutoMixing():
            raise ValueError(f"effort '{self.effort}' finds its own mixing: drop 'mixing'")
        return self


class Evidence(Frozen):
    """Why a recipe: what was selected from which sample by what, and what verification saw. Many per soup."""

    selector: str | None = None
    fitted_at: datetime | None = None
    not_yet_included: tuple[str, ...] = ()
    sample: SampleReport | None = None
    selection: Selection | None = None
    verification: Verification | None = None
    search: Search | None = None


class Cooked(Frozen):
    """The answer to a CookRequest: a soup, one adapter that needs no mixing, or the base (`abstained`)."""

    abstained: bool
    reason: str
    model: str
    """The ref to use as `model`: a soup, an adapter, or `base/<id>`."""
    digest: Digest | None
    soup_id: int | None
    """The catalogue id of the adapter or soup behind `model`; null when abstaining."""
    cached: bool = False
    """True when this recipe was cooked before: the stored bytes were taken."""
    created: bool = False
    """True when this request made a new row."""
    recipe: Recipe | None = None
    recipe_digest: Digest | None = None
    report: MixReport | None = None
    evidence: Evidence = Evidence()
    spent: Spent | None = None
    beyond: tuple[Price, ...] = ()
    """What efforts that spend more would take for this sample."""
