"""A map of a pool's domains in two dimensions, and of a sample among them.

The map is a projection of the posterior selector's space, principal components of the base model's mean states, onto
the two directions in which its domains differ most. Domains that are near on the map may differ in other dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from registry.catalogue.rows import SelectorRow
from registry.context import BaseModel, Registry
from registry.errors import Incompatible, InvalidParameter, Unavailable
from registry.samples.sample import CheckedSample
from registry.select.fitted import load_selector
from registry.select.pools import gone_members
from registry.select.requested import encoder_for
from registry.select.select import sample_vectors
from registry.selectors.contract import Float64
from registry.selectors.posterior import PosteriorSelector
from registry.selectors.projection import FittedProjection, Projection
from registry.selectors.ranking import Member
from registry.spec import Selection, SelectOptions


@dataclass(frozen=True)
class Place:
    """An adapter of the pool, the point of its domain, and its posterior on the sample, if there is one."""

    member: Member
    x: float
    y: float
    posterior: float | None


@dataclass(frozen=True)
class DomainMap:
    """The adapters of a pool, with the point and the selection of a sample, if there is one."""

    places: tuple[Place, ...]
    """Sorted by descending posterior; without a sample by label."""
    explained: float
    """The share of the variance between domains that the two dimensions explain."""
    sample: tuple[float, float] | None
    selection: Selection | None


def base_of(registry: Registry, row: SelectorRow) -> BaseModel:
    """The base model of a selector's pool; raises Unavailable where it is no longer served."""
    for base in registry.bases.values():
        if base.shape.fingerprint == row.pool.base_fingerprint:
            return base
    raise Unavailable(f"The base model that selector {row.id} was fitted for is no longer served here.")


def domain_map(registry: Registry, row: SelectorRow, sample: CheckedSample | None = None) -> DomainMap:
    """The map of a fitted posterior selector.

    Raises InvalidParameter for another kind of selector; with a sample Unavailable where its base model is not served,
    and Incompatible where its encoder has changed since the fit.
    """
    if row.spec.kind != PosteriorSelector.kind:
        raise InvalidParameter(f"Selector {row.id} is of kind {row.spec.kind}: only posterior selectors have a map.")
    selector = cast(PosteriorSelector, load_selector(registry, row))
    with registry.database.read() as catalogue:
        gone = gone_members(catalogue, row)
    points = selector.gaussians_.means
    fitted = fit_plane(points)
    plane = fitted.projection
    point, selection, posteriors = None, None, dict[str, float]()
    if sample is not None:
        encoder = encoder_for(row.spec, base_of(registry, row).encoders())
        if encoder is None or encoder.digest != row.encoder_digest:
            raise Incompatible(f"Selector {row.id} was fitted with another encoder: fit it again.")
        vectors = sample_vectors(sample, encoder, scored=False).array
        ranking = selector.rank(vectors, options=SelectOptions(), exclude=gone)
        selection = ranking.selection()
        posteriors = {candidate.member.digest: candidate.score for candidate in ranking.ranked}
        x, y = plane(selector.sample_point(vectors)[None])[0]
        point = (float(x), float(y))
    places = [
        Place(member, float(x), float(y), posteriors.get(member.digest))
        for member, (x, y) in zip(selector.members_, plane(points), strict=True)
        if member.digest not in gone
    ]
    places.sort(key=lambda place: (-(place.posterior or 0.0), place.member.domain, place.member.digest))
    return DomainMap(tuple(places), fitted.explained, point, selection)


def fit_plane(points: Float64) -> FittedProjection:
    """The projection onto the two directions in which `points` (n, m) differ most.

    The largest coordinate of each axis is positive, so that the same points give the same map.
    """
    centre = points.mean(axis=0)
    _, sizes, directions = np.linalg.svd(points - centre, full_matrices=False)
    axes = np.zeros((2, points.shape[1]))
    rank = int((sizes[:2] > sizes[0] * 1e-9).sum())  # two points differ in one direction only
    axes[:rank] = directions[:rank]
    signs = np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])
    axes *= np.where(signs == 0, 1.0, signs)[:, None]
    total = float((sizes**2).sum())
    explained = float((sizes[:2] ** 2).sum() / total) if total > 0 else 1.0
    return FittedProjection(Projection(centre, axes), explained)
