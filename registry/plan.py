"""Planning a soup: which adapters at which weight, by selection or by hand, before a tensor is read.

Called by the verb `cook`. Adapters that cannot be mixed with the best-ranked one leave before the cap, each with
its reason (DESIGN, "Mixed pools").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from registry.blobs import BlobStore
from registry.catalogue.database import Database
from registry.catalogue.rows import AdapterRow
from registry.encoders.contract import Encoder
from registry.errors import Incompatible, InvalidRecipe
from registry.intake import CheckedSample
from registry.names import parse_ref
from registry.pools import pool_spec
from registry.select import Chosen, Fit, select
from registry.soup.compat import Part, init_reasons, structure_reasons
from registry.spec import BaseShape, CookRequest, GmmSpec, HandRecipe, weights_by_digest


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
    chosen = _leave_out_unmixable(chosen, {digest: _part(row, "1") for digest, row in rows.items()}, request)
    return chosen, tuple(_part(rows[one.digest], one.weight) for one in chosen.selection.selected)


def _leave_out_unmixable(chosen: Chosen, parts: Mapping[str, Part], request: CookRequest) -> Chosen:
    best = _best(chosen, parts)
    exclude = {}
    for digest, part in parts.items():
        pair = [best, part]
        reasons = structure_reasons(pair)
        if not request.mixing.assume_same_init:
            reasons += init_reasons(pair)
        if reasons and digest != best.digest and digest not in chosen.gone:
            exclude[digest] = f"cannot be mixed with {best.ref}: " + " ".join(reasons)
    return replace(chosen, selection=chosen.again(exclude)) if exclude else chosen


def _best(chosen: Chosen, parts: Mapping[str, Part]) -> Part:
    """What the others must go with: the best-ranked; where nothing is ranked, one of the largest group that mixes."""
    selected = [parts[one.digest] for one in chosen.selection.selected]
    if chosen.selector.spec.kind != "uniform":
        return selected[0]
    groups = Counter((part.config, part.provenance.init_hash) for part in selected)
    known = [part for part in selected if part.provenance.init_hash is not None]
    return max(known or selected, key=lambda part: groups[(part.config, part.provenance.init_hash)])


def by_hand(recipe: HandRecipe, *, scope: tuple[str, ...] | None, database: Database) -> tuple[str, tuple[Part, ...]]:
    """The base id and the parts of a recipe by hand.

    An adapter named twice counts with the sum of its weights; weight 0 is left out. Raises NotFound, Retired,
    InvalidName, InvalidRecipe, or Incompatible for two base models.
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
    first = rows[used[0]]
    foreign = [rows[digest] for digest in used if rows[digest].base_fingerprint != first.base_fingerprint]
    if foreign:
        raise Incompatible(
            f"{first.ref} is for base model {first.base_model!r} and {foreign[0].ref} for "
            f"{foreign[0].base_model!r}: a soup has ingredients of one base model.",
            param="recipe",
        )
    try:
        canonical = weights_by_digest({digest: weights[digest] for digest in used})
    except ValueError as error:
        raise InvalidRecipe(f"The recipe's {error}.", param="recipe") from None
    kept = [digest for digest in used if canonical[digest] != "0"]
    return first.base_model, tuple(_part(rows[digest], canonical[digest]) for digest in kept)


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
