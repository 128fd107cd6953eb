"""Choosing: which adapters go into a soup at which weight, by selection or by hand, before a tensor is mixed.

Adapters that cannot be mixed with the best-ranked one leave before the cap, each with its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from registry.blobs import BlobStore
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow
from registry.context import Caller, Registry
from registry.cook.statistics import stored_statistic
from registry.errors import InvalidRecipe
from registry.mixing.auto import best_unranked, exclusion_reasons, within_width
from registry.mixing.compat import SoupIngredient
from registry.names import parse_ref
from registry.progress import Progress
from registry.samples.sample import CheckedSample
from registry.select.select import Chosen, Fit, select
from registry.selectors.ranking import Why
from registry.spec import (
    BY_GRADIENTS,
    CookRequest,
    Effort,
    HandRecipe,
    Ingredient,
    PosteriorSpec,
    Selection,
    SelectorSpec,
    WeightedRef,
    canonical_decimal,
    weights_by_digest,
)
from registry.stored_files import loadable

EVERY = 5
"""Every EVERY-th passage of a sample is held out where losses choose."""
FEW = 20
"""With fewer passages a soup is tried on all of them, each by one that is made alike without it (`plan.folds_of`)."""
MOST = 64
"""Adapters that are looked at for one soup: the largest `max_ingredients` there is."""


def by_selection(
    registry: Registry, caller: Caller, request: CookRequest, *, sample: CheckedSample, fit: Fit,
    passages: Sequence[int] | None = None, progress: Progress | None = None,
) -> tuple[Chosen, tuple[SoupIngredient, ...]]:  # fmt: skip
    """The adapters a selector picks for a sample, or for these of its `passages`; no part means that it abstains."""
    spec = selector_of(request)
    chosen = select(
        registry, caller, sample, pool=request.pool, spec=spec, options=request.options, fit=fit, passages=passages,
        progress=progress,
    )  # fmt: skip
    return mixable(registry, request, chosen)


def selector_of(request: CookRequest) -> SelectorSpec:
    """The selector that a cook is chosen by, where it has no recipe."""
    return request.selector or PosteriorSpec()


def mixable(registry: Registry, request: CookRequest, chosen: Chosen) -> tuple[Chosen, tuple[SoupIngredient, ...]]:
    """What is chosen without what cannot be mixed with its best, and the parts that are left."""
    if chosen.selection.abstained:
        return chosen, ()
    every = chosen.ranking.selection(max_ingredients=MOST).selected
    rows = rows_of(registry, chosen, [one.digest for one in every])
    parts = {digest: part_of(row, "1", registry.blobs) for digest, row in rows.items()}
    chosen = replace(chosen, selection=_mixable(chosen, every, parts, request))
    return chosen, tuple(replace(parts[one.digest], weight=one.weight) for one in chosen.selection.selected)


def rows_of(registry: Registry, chosen: Chosen, digests: Collection[str]) -> dict[str, AdapterRow]:
    """The adapters of these digests that a selector was fitted over, in the order of `digests`."""
    ids = {one.digest: one.adapter_id for one in chosen.selector.members}
    with registry.database.read() as catalogue:
        return {digest: catalogue.adapters.get(ids[digest]) for digest in digests}


def split(count: int) -> tuple[list[int], list[int]]:
    """The numbers of a sample's passages that choose, and of those that are held out to try what was chosen."""
    held = range(EVERY - 1, count, EVERY)
    return [number for number in range(count) if number not in held], list(held)


def looked_at(effort: Effort | None, count: int) -> list[int] | None:
    """The numbers of the passages, of so many, that an effort's selector looks at first; None for all of them."""
    return split(count)[0] if effort in BY_GRADIENTS and count >= FEW else None


def with_note(registry: Registry, chosen: Chosen) -> Selection:
    """A selection that nothing is cooked of, with a warning where it holds what does not go into one soup."""
    rows = rows_of(registry, chosen, [one.digest for one in chosen.selection.selected])
    kinds = sorted({row.config.kind for row in rows.values()})
    if len(kinds) < 2:
        return chosen.selection
    warning = (
        f"The chosen are of {len(kinds)} kinds that are not mixed with each other: {', '.join(kinds)}. A soup is "
        "cooked of those that go with the best of them; a pool can be limited to a method or a tag."
    )
    return chosen.selection.model_copy(update={"warnings": (*chosen.selection.warnings, warning)})


def _mixable(
    chosen: Chosen, every: Sequence[Ingredient], parts: Mapping[str, SoupIngredient], request: CookRequest
) -> Selection:
    """The selection without what cannot be mixed with its best: out before the cap, so that others move up.

    `every` are those that a selection without the cap would have, `parts` what they are as ingredients.
    What is left out here keeps its share of the sample: were it excluded before, its text would count for domains
    it does not belong to. What would make the soup wider than `max_width` leaves after the cap, lowest-ranked first.
    """
    ranked = chosen.selector.spec.kind != "uniform"
    best, out = _apart(parts, every, request, ranked=ranked)
    fitting = [one for one in every if one.digest not in out]
    taken = fitting[: request.options.most] if ranked else fitting
    count, wide = within_width([parts[one.digest] for one in taken], request.mixing, max_width=request.max_width)
    if not out and not wide:
        return chosen.selection
    capped = f"Passes, but {len(taken)} better ones are taken already."
    too_wide = f"Passes, but the soup would be too wide with it. {wide}"
    reasons = {one.digest: Why(capped, capped) for one in fitting}
    reasons |= {one.digest: Why(too_wide, too_wide) for one in taken[count:]}
    apart_from = f"Cannot be mixed with {best.ref}"
    reasons |= {digest: Why(f"{apart_from}: {reason}", f"{apart_from}.") for digest, reason in out.items()}
    taken = taken[:count]
    weights = chosen.ranking.weights(one.digest for one in taken)
    most = count if wide else request.options.most
    stable = chosen.ranking.stability(most, without=out)
    narrow = f", {count} fit into max_width {request.max_width}" if wide else f", {count} taken"
    return chosen.selection.model_copy(
        update={
            "selected": tuple(
                one.model_copy(update={"weight": weights[one.digest], "stability": stable.get(one.digest)})
                for one in taken
            ),
            **chosen.ranking.listing(weights, why=reasons),
            "reason": f"{len(every)} domains pass, {len(fitting)} can be mixed with {best.ref}{narrow}.",
        }
    )


def _apart(
    parts: Mapping[str, SoupIngredient], every: Sequence[Ingredient], request: CookRequest, *, ranked: bool
) -> tuple[SoupIngredient, dict[str, str]]:
    """The part that the others must go with, and why some cannot, by digest.

    It is the best-ranked, or where nothing is ranked one of the largest group that mixes.
    """
    selected = [parts[one.digest] for one in every]
    best = selected[0] if ranked else best_unranked(selected, request.mixing)
    return best, exclusion_reasons(best, selected, request.mixing, ranked=ranked)


def by_hand(registry: Registry, caller: Caller, recipe: HandRecipe) -> tuple[str, tuple[SoupIngredient, ...]]:
    """The base id and the parts of a recipe by hand.

    An adapter named twice counts with the sum of its weights; weight 0 is left out. What cannot be mixed is found
    by the mixing method, with all reasons. Raises NotFound, Retired, InvalidName or InvalidRecipe.
    """
    weights: dict[str, float] = {}
    rows: dict[str, AdapterRow] = {}
    said: dict[str, WeightedRef] = {}
    with registry.database.read() as catalogue:
        for one in recipe.ingredients:
            row = catalogue.adapters.resolve(caller.namespaces, parse_ref(one.ref))
            _check_said(catalogue, caller, row, one, said.get(row.digest))
            rows[row.digest], said[row.digest] = row, one
            weights[row.digest] = weights.get(row.digest, 0.0) + one.weight
    used = [digest for digest in rows if weights[digest] > 0]
    if not used:
        raise InvalidRecipe("Every weight of the recipe is 0: give at least one ingredient a weight.", param="recipe")
    layered = said[used[0]].layers is not None  # then all have them
    try:
        own = {digest: weights[digest] for digest in used}
        canonical = {one: canonical_decimal(w) for one, w in own.items()} if layered else weights_by_digest(own)
    except ValueError as error:
        raise InvalidRecipe(
            f"The recipe's weights {error}." if layered else f"The recipe's {error}.", param="recipe"
        ) from None
    kept = [digest for digest in used if canonical[digest] != "0"]
    if not kept:
        raise InvalidRecipe("Every weight of the recipe is 0 at nine decimal places.", param="recipe")
    parts = (part_of(rows[digest], canonical[digest], registry.blobs) for digest in kept)
    return rows[used[0]].base_model, tuple(_as_said(registry, part, said[part.digest]) for part in parts)


def _check_said(
    catalogue: Catalogue, caller: Caller, row: AdapterRow, one: WeightedRef, before: WeightedRef | None
) -> None:
    """Raises InvalidRecipe where an adapter is named twice otherwise, or with a statistic not its own."""
    if before is not None and one.layers is not None:
        raise InvalidRecipe(f"{one.ref} is in the recipe twice, with factors of its own.", param="recipe")
    if before is not None and one.statistic != before.statistic:
        raise InvalidRecipe(f"{one.ref} is in the recipe twice, with another statistic.", param="recipe")
    if one.statistic is not None and catalogue.statistics.named(caller.namespaces, row.digest, one.statistic) is None:
        raise InvalidRecipe(
            f"{one.statistic} is no statistic of {one.ref} on a sample that this key sees: name one of a stored "
            "recipe, or leave it out.",
            param="recipe",
        )


def _as_said(registry: Registry, part: SoupIngredient, one: WeightedRef) -> SoupIngredient:
    """The part with what the recipe says of it besides its weight."""
    known = None if one.statistic is None else stored_statistic(registry.blobs, one.statistic)
    return replace(part, layers=one.layers, statistic=known)


def part_of(row: AdapterRow, weight: str, blobs: BlobStore) -> SoupIngredient:
    """The ingredient that a row is, at this weight."""
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
