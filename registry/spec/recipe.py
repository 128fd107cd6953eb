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
"""Factors by site: `layers.3.ffn` for a bottleneck (the prefix of its tensors' names), a module's path for a LoRA."""


AdapterRef = Annotated[str, Field(max_length=200)]


class RecipeIngredient(Frozen):
    """An adapter digest and its canonical decimal weight.

    Weights sum to 1, unless the ingredients have `layers`: then the factor of a site is the weight times its factor in
    `layers`, and every ingredient has them. `statistic` is the digest of the statistic from the ingredient's own
    sample, for methods that use one.
    """

    digest: Digest
    weight: str
    layers: LayerFactors | None = Field(default=None, exclude_if=not_set)
    statistic: Digest | None = Field(default=None, exclude_if=not_set)


class MixReport(Frozen):
    """The report of mixing: widths of ingredients and soup, the cost to serve it, and its error against the exact
    mixture.
    """

    method: str
    members: int
    weights: tuple[str, ...]
    parameters: int
    size_bytes: int
    width_in: tuple[int, ...] = ()
    """Bottleneck width or largest LoRA rank of each ingredient, in the order of the recipe."""
    width_out: int = 0
    """The width of the soup; 0 in older reports."""
    relative_cost: float
    """Multiplications per token of the base with the soup, relative to the base with a mean ingredient."""
    residual: float | None = None
    """Relative error of the soup's layer outputs against the exact mixture (`scale` times the weighted mean of its
    ingredients'). It is computed in the Frobenius norm of the weight updates for LoRA, on fixed normal probes for
    bottlenecks."""
    residuals: dict[str, float] | None = Field(default=None, exclude_if=not_set)
    """The relative error of a recompressed soup at each site; sites without an update are absent."""
    notes: tuple[str, ...] = ()


class Recipe(Frozen):
    """The values that determine a soup's bytes, and no others. Ingredients are sorted by digest.

    With `tuning` the mixture is the start of a training on a sample: then the recipe and the text of that sample
    determine the bytes, up to rounding.
    """

    base_fingerprint: Digest
    ingredients: tuple[RecipeIngredient, ...] = Field(min_length=1)
    mixing: Mixing = AverageMixing()
    seed: int | None = None
    tuning: Tuning | None = Field(default=None, exclude_if=not_set)

    @property
    def digest(self) -> str:
        """The digest that identifies a soup that was cooked before."""
        return digest_of(self)


class WeightedRef(Frozen):
    """An ingredient written by hand: any adapter ref and a weight, normalised over the recipe.

    Weights with factors by site (`layers`), as in a stored recipe, are not normalised. `statistic` names a stored
    statistic of the adapter, for methods that use one. By default it is that of the version's own sample, computed if
    it is missing.
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

    With `verify` the finished soup must beat the base model on the sample by one paired standard error, or the answer
    is the base model. A recipe by hand is verified if the request has a sample.

    `effort` is how much computation the choice may use. Without an effort, a given `selector` chooses alone. Without
    either, the effort is the server's default, `tune` unless it is set. `quick` replaces `tune` if the namespace
    forbids tuning, or if the sample or the adapters cannot be tuned. The effort is `instant` if `verify` is false, if
    the request has a mixing or `single`, or if the base model is an encoder.

    `instant`: the weights are those of the `posterior` selector. `quick`: its best candidates, and the adapters in
    `also`, are weighed on most of the sample, and the result must beat the base model on the rest. `thorough`: the same
    with more candidates and steps, and further mixing methods. With `control` both also weigh random adapters, and
    report their gain. `tune`: the soup of `instant`, or one by hand, is trained on the sample (`tuning`), and must beat
    the base model on held-out passages. With `keep`, the name of a domain, the soup joins the pool as an adapter of
    that domain. A `budget` limits weighing and training, but not the number of held-out passages.
    """

    sample: SampleSource | None = None
    effort: Effort | None = None
    selector: SelectorSpec | None = None
    options: SelectOptions = SelectOptions()
    pool: PoolRequest = PoolRequest()
    recipe: HandRecipe | None = None
    mixing: MixingRequest = AutoMixing()
    max_width: int = Field(default=MAX_WIDTH, ge=1, le=65536)
    """The maximum bottleneck width (or rank of a LoRA) of a mixture."""
    name: str | None = Field(default=None, max_length=129)
    """`namespace/name`; a name without a namespace is in the key's default namespace."""
    owner: Owner | None = None
    """The owner of the stored name, as for a push; by default the owner does not change."""
    verify: bool = True
    also: tuple[AdapterRef, ...] = Field(default=(), max_length=16)
    """Adapters that are also weighed, even if they are not in the pool."""
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
            raise ValueError("'tuning' and 'keep' are for effort 'tune': name it")
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
    """The evidence of a cook: the sample, the selection and its selector, and the verification. A soup can have
    several.
    """

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
    """True if the caller sees a live soup of this recipe from an earlier cook, whose stored bytes were taken."""
    created: bool = False
    """True when this request made a new row."""
    recipe: Recipe | None = None
    recipe_digest: Digest | None = None
    report: MixReport | None = None
    evidence: Evidence = Evidence()
    spent: Spent | None = None
    beyond: tuple[Price, ...] = ()
    """Prices of higher efforts for this sample."""
