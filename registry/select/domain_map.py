"""Where the domains of a pool lie, in two dimensions, and where a sample lies among them.

The space is the posterior selector's own: principal components of the base model's mean states. What is shown of it
are the two directions in which its domains differ most. Its other dimensions decide about a sample as well, so that
what is near on the map need not be near.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from registry.catalogue.rows import SelectorRow
from registry.context import BaseModel, Registry
from registry.errors import Incompatible, InvalidParameter, Unavailable
from registry.samples.sample import CheckedSample
from registry.select.pools import gone_members
from registry.select.select import encoder_for, loaded, sample_vectors
from registry.selectors.posterior import PosteriorSelector
from registry.selectors.ranking import Member
from registry.spec import Selection, SelectOptions

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Place:
    """An adapter of the pool, where the domain of its sample lies, and its share of a sample."""

    member: Member
    x: float
    y: float
    posterior: float | None


@dataclass(frozen=True)
class DomainMap:
    """The adapters of a pool, and a sample among them, if one was given."""

    places: tuple[Place, ...]
    """Those with the largest posterior first; without a sample in the order of their labels."""
    explained: float
    """The share of the variance between domains that two dimensions have."""
    sample: tuple[float, float] | None
    selection: Selection | None
    """What the selector says of the sample."""


def base_of(registry: Registry, row: SelectorRow) -> BaseModel:
    """The base model that a selector's pool is over; raises Unavailable where it is not served any more."""
    for base in registry.bases.values():
        if base.shape.fingerprint == row.pool.base_fingerprint:
            return base
    raise Unavailable(f"The base model that selector {row.id} was fitted for is not served here any more.")


def domain_map(registry: Registry, row: SelectorRow, sample: CheckedSample | None = None) -> DomainMap:
    """The map of a fitted posterior selector.

    Raises InvalidParameter for one of another kind; with a sample Unavailable where its base model is not served, and
    Incompatible where its encoder is another by now.
    """
    if row.spec.kind != PosteriorSelector.kind:
        raise InvalidParameter(f"Selector {row.id} is of kind {row.spec.kind}: only posterior selectors have a map.")
    selector = cast(PosteriorSelector, loaded(registry, row))
    with registry.database.read() as catalogue:
        gone = gone_members(catalogue, row)
    to_plane, explained = plane(selector.places)
    point, selection, posteriors = None, None, dict[str, float]()
    if sample is not None:
        encoder = encoder_for(row.spec, base_of(registry, row).encoders())
        if encoder is None or encoder.digest != row.encoder_digest:
            raise Incompatible(f"Selector {row.id} was fitted with another encoder: fit it again.")
        vectors = sample_vectors(sample, encoder, scored=False).array
        ranking = selector.rank(vectors, options=SelectOptions(), exclude=gone)
        selection = ranking.selection()
        posteriors = {one.member.digest: one.score for one in ranking.ranked}
        x, y = to_plane(selector.place(vectors)[None])[0]
        point = (float(x), float(y))
    found = [
        Place(member, float(x), float(y), posteriors.get(member.digest))
        for member, (x, y) in zip(selector.members_, to_plane(selector.places), strict=True)
        if member.digest not in gone
    ]
    found.sort(key=lambda one: (-(one.posterior or 0.0), one.member.domain, one.member.digest))
    return DomainMap(tuple(found), explained, point, selection)


@dataclass(frozen=True)
class Plane:
    """Two directions (2, m) through a point (m,)."""

    centre: Float64
    axes: Float64

    def __call__(self, points: Float64) -> Float64:
        """The coordinates (n, 2) of points (n, m)."""
        return (points - self.centre) @ self.axes.T


def plane(places: Float64) -> tuple[Plane, float]:
    """The two directions in which `places` (n, m) differ most, and the share of their variance that these have.

    Of each direction the coordinate that is largest is positive, so that the same places give the same map.
    """
    centre = places.mean(axis=0)
    _, sizes, directions = np.linalg.svd(places - centre, full_matrices=False)
    axes = np.zeros((2, places.shape[1]))
    there = int((sizes[:2] > sizes[0] * 1e-9).sum())  # two places differ in one direction alone
    axes[:there] = directions[:there]
    signs = np.sign(axes[np.arange(2), np.abs(axes).argmax(axis=1)])
    axes *= np.where(signs == 0, 1.0, signs)[:, None]
    total = float((sizes**2).sum())
    return Plane(centre, axes), float((sizes[:2] ** 2).sum() / total) if total > 0 else 1.0
