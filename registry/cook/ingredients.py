"""The ingredients of a soup: those a recipe names, or those the selector chose that can be mixed with its best.

All incompatibilities surface here, before a tensor is mixed. Adapters that cannot be mixed with the best-ranked one
leave before the cap, each with its reason, so that others move up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from registry.adapters.weights import load_tensors
from registry.blobs import BlobStore
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow
from registry.context import Caller, Registry
from registry.cook.job import CookJob
from registry.cook.sample import FEW
from registry.errors import InvalidParameter, InvalidRecipe
from registry.mixing.auto import best_unranked, exclusion_reasons, within_width
from registry.mixing.compat import SoupIngredient, Statistic
from registry.names import parse_ref
from registry.select.select import HAS_LEARNT, Chosen, SelectQuery, select_from_pool
from registry.selectors.ranking import Reason
from registry.spec import (
    HOLDS_OUT,
    MAX_INGREDIENTS,
    CookRequest,
    HandRecipe,
    Ingredient,
    PosteriorSpec,
    Selection,
    SelectorSpec,
    WeightedRef,
    canonical_decimal,
    weights_by_digest,
)
from registry.stored.adapters import loadable

# --- by selection ------------------------------------------------------------------------------------


def select_ingredients(job: CookJob) -> CookJob:
    """The job with the ingredients that its selector chooses; as it is where a recipe names them.

    If candidates are tried on held-out passages, the selector reads only the other passages. No ingredient means that
    it abstains; for effort `tune` it takes the best-ranked adapter instead, because training and held-out passages
    decide.
    """
    if job.request.recipe is not None:
        return job
    sample = job.sample
    assert sample is not None  # a CookRequest has a sample where it has no recipe
    holds_out = job.request.effort in HOLDS_OUT and len(sample.texts) >= FEW
    passages = sample.split.fit if holds_out else None
    options = job.request.options
    if job.request.effort == "tune":
        options = options.model_copy(update={"when_none": "top"})
    query = SelectQuery(job.request.pool, selector_of(job.request), options, passages)
    selection = select_from_pool(
        job.registry,
        job.caller,
        sample,
        query,
        fit=job.computations.fit,
        progress=lambda _done, _total, message: job.report(1, message),
    )
    selection, ingredients = compatible(job.registry, job.request, selection)
    return replace(job, selection=selection, ingredients=ingredients)


def selector_of(request: CookRequest) -> SelectorSpec:
    """The selector of a request without a recipe."""
    return request.selector or PosteriorSpec()


def compatible(
    registry: Registry, request: CookRequest, selection: Chosen
) -> tuple[Chosen, tuple[SoupIngredient, ...]]:
    """The selection without what cannot be mixed with its best, and the ingredients that are left."""
    if selection.selection.abstained:
        return selection, ()
    passing = selection.ranking.selection(max_ingredients=MAX_INGREDIENTS).selected
    rows = rows_of(registry, selection, [adapter.digest for adapter in passing])
    ingredients = {digest: ingredient_of(row, "1", registry.blobs) for digest, row in rows.items()}
    selection = replace(selection, selection=_compatible_selection(selection, passing, ingredients, request))
    selected = selection.selection.selected
    return selection, tuple(replace(ingredients[adapter.digest], weight=adapter.weight) for adapter in selected)


def check_not_learnt(job: CookJob, ingredients: Sequence[SoupIngredient], *, param: str) -> None:
    """Raises InvalidParameter for an adapter that has learnt from the job's sample: no passage would be held out."""
    assert job.sample is not None
    with job.registry.database.read() as catalogue:
        learnt = {row.digest for row in catalogue.adapters.learnt_from(job.sample.report.digest)}
    for ingredient in ingredients:
        if ingredient.digest in learnt:
            raise InvalidParameter(
                f"{ingredient.ref} {HAS_LEARNT}, so no passage of it can be held out: leave it out of {param!r}, or "
                "send other passages.",
                param=param,
            )


def rows_of(registry: Registry, selection: Chosen, digests: Collection[str]) -> dict[str, AdapterRow]:
    """The adapters of these digests that a selector was fitted over, in the order of `digests`."""
    ids = {member.digest: member.adapter_id for member in selection.selector.members}
    with registry.database.read() as catalogue:
        return {digest: catalogue.adapters.get(ids[digest]) for digest in digests}


def with_note(registry: Registry, chosen: Chosen) -> Selection:
    """A selection for an answer without a soup, with a warning if its adapters cannot all go into one soup."""
    rows = rows_of(registry, chosen, [adapter.digest for adapter in chosen.selection.selected])
    kinds = sorted({row.config.kind for row in rows.values()})
    if len(kinds) < 2:
        return chosen.selection
    warning = (
        f"The chosen are of {len(kinds)} kinds that are not mixed with each other: {', '.join(kinds)}. A soup is "
        "cooked of those that go with the best of them; a pool can be limited to a method or a tag."
    )
    return chosen.selection.model_copy(update={"warnings": (*chosen.selection.warnings, warning)})


def _compatible_selection(
    chosen: Chosen, passing: Sequence[Ingredient], ingredients: Mapping[str, SoupIngredient], request: CookRequest
) -> Selection:
    """The selection without adapters that cannot be mixed with its best; they are removed before the cap, so that
    others move up.

    `passing` are the adapters of the selection without the cap. An adapter that is removed here keeps its share of the
    sample: if it were excluded earlier, its text would count for other domains. Adapters that make the soup wider than
    `max_width` are removed after the cap, lowest rank first.
    """
    is_ranked = chosen.selector.spec.kind != "uniform"
    candidates = [ingredients[adapter.digest] for adapter in passing]
    best = candidates[0] if is_ranked else best_unranked(candidates, request.mixing)
    obstacles = exclusion_reasons(best, candidates, request.mixing, ranked=is_ranked)
    fitting = [adapter for adapter in passing if adapter.digest not in obstacles]
    selected = fitting[: request.options.most] if is_ranked else fitting
    count, too_wide = within_width(
        [ingredients[adapter.digest] for adapter in selected], request.mixing, max_width=request.max_width
    )
    if not obstacles and not too_wide:
        return chosen.selection
    over_cap = f"Passes, but {len(selected)} better ones are taken already."
    over_width = f"Passes, but the soup would be too wide with it. {too_wide}"
    cannot = f"Cannot be mixed with {best.ref}"
    reasons = {adapter.digest: Reason(over_cap, over_cap) for adapter in fitting}
    reasons |= {adapter.digest: Reason(over_width, over_width) for adapter in selected[count:]}
    reasons |= {digest: Reason(f"{cannot}: {reason}", f"{cannot}.") for digest, reason in obstacles.items()}
    selected = selected[:count]
    weights = chosen.ranking.weights(adapter.digest for adapter in selected)
    stability = chosen.ranking.stability(count if too_wide else request.options.most, without=obstacles)
    limit = f", {count} fit into max_width {request.max_width}" if too_wide else f", {count} taken"
    return chosen.selection.model_copy(
        update={
            "selected": tuple(
                adapter.model_copy(
                    update={"weight": weights[adapter.digest], "stability": stability.get(adapter.digest)}
                )
                for adapter in selected
            ),
            **chosen.ranking.listing(weights, reasons=reasons),
            "reason": f"{len(passing)} domains pass, {len(fitting)} can be mixed with {best.ref}{limit}.",
        }
    )


# --- by recipe ---------------------------------------------------------------------------------------


def recipe_ingredients(
    registry: Registry, caller: Caller, recipe: HandRecipe
) -> tuple[tuple[AdapterRow, ...], tuple[SoupIngredient, ...]]:
    """The adapters of a recipe by hand, and each as its ingredient.

    An adapter named twice counts with the sum of its weights; weight 0 is left out. The mixing method reports adapters
    that cannot be mixed, with all reasons. Raises NotFound, Retired, InvalidName or InvalidRecipe.
    """
    weights: dict[str, float] = {}
    rows: dict[str, AdapterRow] = {}
    refs: dict[str, WeightedRef] = {}
    with registry.database.read() as catalogue:
        for ref in recipe.ingredients:
            row = catalogue.adapters.resolve(caller.namespaces, parse_ref(ref.ref))
            _check_ref(catalogue, caller, row, ref, refs.get(row.digest))
            rows[row.digest], refs[row.digest] = row, ref
            weights[row.digest] = weights.get(row.digest, 0.0) + ref.weight
    weights = {digest: weight for digest, weight in weights.items() if weight > 0}
    if not weights:
        raise InvalidRecipe("Every weight of the recipe is 0: give at least one ingredient a weight.", param="recipe")
    first = next(iter(weights))
    has_layers = refs[first].layers is not None  # then all have them
    try:
        if has_layers:
            decimals = {digest: canonical_decimal(weight) for digest, weight in weights.items()}
        else:
            decimals = weights_by_digest(weights)
    except ValueError as error:
        raise InvalidRecipe(
            f"The recipe's weights {error}." if has_layers else f"The recipe's {error}.", param="recipe"
        ) from None
    digests = [digest for digest in weights if decimals[digest] != "0"]
    if not digests:
        raise InvalidRecipe("Every weight of the recipe is 0 at nine decimal places.", param="recipe")
    ingredients = tuple(
        replace(
            ingredient_of(rows[digest], decimals[digest], registry.blobs),
            layers=refs[digest].layers,
            statistic=_statistic_of(registry.blobs, refs[digest]),
        )
        for digest in digests
    )
    return tuple(rows[digest] for digest in digests), ingredients


def _check_ref(
    catalogue: Catalogue, caller: Caller, row: AdapterRow, ref: WeightedRef, earlier: WeightedRef | None
) -> None:
    """Raises InvalidRecipe where an adapter is named twice otherwise, or with a statistic not its own."""
    if earlier is not None and ref.layers is not None:
        raise InvalidRecipe(f"{ref.ref} is in the recipe twice, with different factors by layer.", param="recipe")
    if earlier is not None and ref.statistic != earlier.statistic:
        raise InvalidRecipe(f"{ref.ref} is in the recipe twice, with different statistics.", param="recipe")
    if (
        ref.statistic is not None
        and catalogue.statistics.find_by_blob(caller.namespaces, row.digest, ref.statistic) is None
    ):
        raise InvalidRecipe(
            f"{ref.statistic} is not a statistic of {ref.ref} on a visible sample: copy it from a stored "
            "recipe, or leave it out.",
            param="recipe",
        )


def _statistic_of(blobs: BlobStore, ref: WeightedRef) -> Statistic | None:
    return None if ref.statistic is None else stored_statistic(blobs, ref.statistic)


def stored_statistic(blobs: BlobStore, blob: str) -> Statistic:
    """The statistic in a blob; reading it raises DamagedBlob."""
    return Statistic(blob, lambda: load_tensors(blobs.read(blob)))


def ingredient_of(row: AdapterRow, weight: str, blobs: BlobStore) -> SoupIngredient:
    """A stored adapter as an ingredient, at this weight."""
    return SoupIngredient(
        **vars(loadable(row, blobs)),
        adapter_id=row.id,
        ref=row.ref,
        weight=weight,
        base_fingerprint=row.base_fingerprint,
        provenance=row.provenance,
        dtype=row.dtype,
        sample=row.sample.digest if row.sample is not None and row.sample.has_text else None,
    )
