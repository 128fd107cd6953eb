"""What weighing leads to: which soups of the candidates are tried, and what is reported of each candidate.

Called by `cook.search`. Nothing is mixed here: a way to make a soup is parts and a request that says how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from registry.adapters import sites_of
from registry.catalogue.rows import AdapterRow
from registry.cook.choose import FEW
from registry.cook.plan import DEPTHS, parts_of
from registry.mixing import recompress
from registry.mixing.compat import SoupIngredient
from registry.spec import (
    BaseShape,
    ConcatMixing,
    CookRequest,
    RecompressMixing,
    StoredAdapter,
    Way,
    WeighedCandidate,
    Weighing,
    WeighingRequest,
    canonical_decimal,
    canonical_weights,
)

How = tuple[Sequence[SoupIngredient], CookRequest]
"""The parts of a soup, and the request that says how they are mixed."""


def request_of(
    request: CookRequest, candidates: Sequence[tuple[AdapterRow, SoupIngredient]], texts: Sequence[str]
) -> WeighingRequest:
    """What is asked of weighing, as far as the effort goes."""
    depth = DEPTHS[request.effort]
    return WeighingRequest(
        texts=tuple(texts),
        candidates=tuple(StoredAdapter(config=row.config, blob=row.weights_blob) for row, _ in candidates),
        keep=request.options.max_ingredients or depth.members,
        max_width=request.max_width,
        parts=parts_of(len(texts)),
        steps=depth.steps_over(len(texts)),
        batch=depth.batch(len(texts)),
        by_screen=len(texts) < FEW,
        alone=min(depth.alone, len(candidates)),
    )


def side_by_side(
    weighing: Weighing, parts: Sequence[SoupIngredient], request: CookRequest, shape: BaseShape, asked: WeighingRequest
) -> dict[Way, How]:
    """The exact mixtures that weighing, as it was asked, leads to."""
    ways: dict[Way, How] = {}
    exact = request.model_copy(update={"mixing": ConcatMixing()})
    if weighed := _weighed(weighing, parts, shape):
        ways["weighed"] = weighed, exact
    found = weighing.by_losses
    if found is None:
        return ways
    weights = {at: weight for at, weight in zip(found.scored, found.em, strict=True) if weight > 0}
    first = asked.most_that_fit(sorted(weights, key=lambda at: -weights[at]))
    weights = {at: weights[at] for at in first}
    if weights:
        scale = canonical_decimal(sum(weights.values()))
        mixing = ConcatMixing(scale=scale)
        ways["em"] = _at(parts, weights), request.model_copy(update={"mixing": mixing})
    if found.greedy:
        ways["greedy"] = _at(parts, dict.fromkeys(found.greedy, 1.0)), exact
    return ways


def best_alone(weighing: Weighing | None) -> int | None:
    """The number of the candidate that is the best one by itself on the passages that decide, if one was weighed.

    By its loss where that was looked at, else by its mean coefficient; of equal ones the first.
    """
    if weighing is None or not weighing.kept:
        return None
    if weighing.by_losses is not None:
        scored = dict(zip(weighing.by_losses.scored, weighing.by_losses.differences, strict=True))
        return min(scored, key=lambda number: scored[number])
    found = dict(zip(weighing.kept, weighing.coefficients, strict=True))
    return max(found, key=lambda number: fmean(found[number].values()))


def _at(parts: Sequence[SoupIngredient], weights: Mapping[int, float]) -> list[SoupIngredient]:
    """The parts of these numbers, at these weights over their sum."""
    shares = canonical_weights(list(weights.values()))
    return [replace(parts[at], weight=share) for at, share in zip(weights, shares, strict=True) if share != "0"]


def narrow(parts: Sequence[SoupIngredient], request: CookRequest) -> How | None:
    """The same as narrow as one of them, None where it is one or cannot be brought so far."""
    assert isinstance(request.mixing, ConcatMixing)
    mixing = RecompressMixing(scale=request.mixing.scale)
    if len(parts) < 2 or recompress.too_wide(parts, mixing, request.max_width):
        return None
    return parts, request.model_copy(update={"mixing": mixing})


def _weighed(weighing: Weighing, parts: Sequence[SoupIngredient], shape: BaseShape) -> list[SoupIngredient]:
    """The kept candidates with their coefficients: the mean as the weight, and beside it a factor for each site."""
    found = []
    for number, by_site in _own_sites(weighing, parts, shape).items():
        weight = canonical_decimal(fmean(by_site.values()))
        if weight != "0":
            layers = {site: canonical_decimal(value / float(weight)) for site, value in by_site.items()}
            found.append(replace(parts[number], weight=weight, layers=layers))
    return found


def _own_sites(weighing: Weighing, parts: Sequence[SoupIngredient], shape: BaseShape) -> dict[int, dict[str, float]]:
    """The coefficients of kept candidates at the sites they have: a LoRA need not know every module another knows."""
    found = {}
    for number, by_site in zip(weighing.kept, weighing.coefficients, strict=True):
        known = sites_of(parts[number].config, shape)
        found[number] = {site: value for site, value in by_site.items() if site in known}
    return found


def reported(
    candidates: Sequence[tuple[AdapterRow, SoupIngredient]], weighing: Weighing | None, shape: BaseShape
) -> tuple[WeighedCandidate, ...]:
    """Every candidate with its screen, best first, and its mean coefficient where it has one."""
    if weighing is None:
        return ()
    own = _own_sites(weighing, [part for _, part in candidates], shape)
    losses = weighing.by_losses
    alone = {} if losses is None else dict(zip(losses.scored, losses.differences, strict=True))
    means = {number: fmean(by_site.values()) for number, by_site in own.items()}
    found = [
        WeighedCandidate(
            ref=row.ref, digest=row.digest, domain=row.domain, score=screened.score,
            standard_error=screened.standard_error, coefficient=means.get(number), alone=alone.get(number),
        )
        for number, ((row, _), screened) in enumerate(zip(candidates, weighing.screened, strict=True))
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.score, one.digest)))
