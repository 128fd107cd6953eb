"""Planning a soup: which adapters at which weight, by selection or by hand, before a tensor is read.

Called by the verb `cook`. Adapters that cannot be mixed with the best-ranked one leave before the cap, each with
its reason (DESIGN, "Mixed pools").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from registry.blobs import BlobStore
from registry.catalogue.database import Database
from registry.catalogue.rows import AdapterRow
from registry.encoders.contract import Encoder
from registry.errors import InvalidRecipe
from registry.intake import CheckedSample
from registry.names import parse_ref
from registry.pools import pool_spec
from registry.select import Chosen, Fit, select
from registry.soup.compat import Part, init_reasons, structure_reasons
from registry.spec import BaseShape, CookRequest, GmmSpec, HandRecipe, LeftOut, Mixing, Selection, weights_by_digest

MOST = 64
"""Adapters that are looked at for one soup: the largest `max_ingredients` there is."""


def by_selection(
    request: CookRequest,
    sample: CheckedSample,
    *,
    scope: tuple[str, ...] | None,
    shape: BaseShape,
    encoders: Mapping[str, Encoder],
    database: Database,
    blobs: BlobStore,
    fit: Fit,
) -> tuple[Chosen, tuple[Part, ...]]:
    """The adapters a selector picks for a sample; no part means that it abstains."""
    chosen = select(
        sample,
        pool=pool_spec(request.pool, shape, scope),
        spec=request.selector or GmmSpec(),
        options=request.options,
        encoders=encoders,
        database=database,
        blobs=blobs,
        fit=fit,
    )
    if chosen.selection.abstained:
        return chosen, ()
    with database.read() as catalogue:
        rows = {m.digest: catalogue.adapters.get(m.adapter_id) for m in chosen.selector.members}
    parts = {digest: _part(row, "1") for digest, row in rows.items()}
    chosen = replace(chosen, selection=_mixable(chosen, parts, request))
    return chosen, tuple(_part(rows[one.digest], one.weight) for one in chosen.selection.selected)


def _mixable(chosen: Chosen, parts: Mapping[str, Part], request: CookRequest) -> Selection:
    """The selection without what cannot be mixed with its best: out before the cap, so that others move up.

    What is left out here keeps its share of the sample: were it excluded before, its text would count for domains
    it does not belong to.
    """
    every = chosen.again(request.options.model_copy(update={"max_ingredients": MOST})).selected
    best = _best(chosen, [parts[one.digest] for one in every])
    apart = {one.digest: _apart(best, parts[one.digest], request.mixing) for one in every}
    if not any(apart.values()):
        return chosen.selection
    fitting = [one for one in every if not apart[one.digest]]
    taken = fitting if chosen.selector.spec.kind == "uniform" else fitting[: request.options.max_ingredients]
    weights = weights_by_digest({one.digest: 1.0 for one in taken})
    out = []
    for one in every:
        reason = f"Passes, but {len(taken)} better ones are taken already."
        if apart[one.digest]:
            reason = f"Cannot be mixed with {best.ref}: {apart[one.digest]}"
        if one not in taken:
            out.append(LeftOut(**one.model_dump(exclude={"weight"}), reason=reason))
    return chosen.selection.model_copy(
        update={
            "selected": tuple(one.model_copy(update={"weight": weights[one.digest]}) for one in taken),
            "left_out": (*out, *(one for one in chosen.selection.left_out if one.digest not in apart)),
            "reason": f"{len(every)} domains pass, {len(fitting)} can be mixed with {best.ref}, {len(taken)} taken.",
        }
    )


def _best(chosen: Chosen, selected: Sequence[Part]) -> Part:
    """What the others must go with: the best-ranked; where nothing is ranked, one of the largest group that mixes."""
    if chosen.selector.spec.kind != "uniform":
        return selected[0]
    groups = Counter((part.config, part.provenance.init_hash) for part in selected)
    known = [part for part in selected if part.provenance.init_hash is not None]
    return max(known or selected, key=lambda part: groups[(part.config, part.provenance.init_hash)])


def _apart(best: Part, part: Part, mixing: Mixing) -> str:
    """Why two adapters cannot be in one soup; empty where they can."""
    if part.digest == best.digest:
        return ""
    reasons = structure_reasons([best, part])
    return " ".join(reasons if mixing.assume_same_init else reasons + init_reasons([best, part]))


def by_hand(recipe: HandRecipe, *, scope: tuple[str, ...] | None, database: Database) -> tuple[str, tuple[Part, ...]]:
    """The base id and the parts of a recipe by hand.

    An adapter named twice counts with the sum of its weights; weight 0 is left out. What cannot be mixed is found
    by the mixing method, with all reasons. Raises NotFound, Retired, InvalidName or InvalidRecipe.
    """
    weights: dict[str, float] = {}
    rows: dict[str, AdapterRow] = {}
    with database.read() as catalogue:
        for one in recipe.ingredients:
            row = catalogue.adapters.resolve(scope, parse_ref(one.ref))
            rows[row.digest] = row
            weights[row.digest] = weights.get(row.digest, 0.0) + one.weight
    used = [digest for digest in rows if weights[digest] > 0]
    if not used:
        raise InvalidRecipe("Every weight of the recipe is 0: give at least one ingredient a weight.", param="recipe")
    try:
        canonical = weights_by_digest({digest: weights[digest] for digest in used})
    except ValueError as error:
        raise InvalidRecipe(f"The recipe's {error}.", param="recipe") from None
    kept = [digest for digest in used if canonical[digest] != "0"]
    return rows[used[0]].base_model, tuple(_part(rows[digest], canonical[digest]) for digest in kept)


def _part(row: AdapterRow, weight: str) -> Part:
    return Part(
        adapter_id=row.id,
        ref=row.ref,
        digest=row.digest,
        weight=weight,
        base_fingerprint=row.base_fingerprint,
        config=row.config,
        provenance=row.provenance,
        dtype=row.dtype,
    )
