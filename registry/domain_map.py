"""Where the domains of a pool lie, in two dimensions, and where a sample lies among them.

The space is the posterior selector's own: principal components of the base model's mean states. What is shown of it
are the two directions in which its domains differ most. Its other dimensions decide about a sample as well, so that
what is near on the map need not be near.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from registry.catalogue.rows import SelectorRow
from registry.errors import NotFound, Unavailable
from registry.pools import gone_members
from registry.registry import Caller, Registry
from registry.samples import CheckedSample
from registry.select import Chosen, answering, encoder_for, loaded, pool_of, select
from registry.selectors.posterior import PosteriorSelector
from registry.selectors.ranking import Member
from registry.spec import PoolRequest, PosteriorSpec, SelectOptions

Float64 = npt.NDArray[np.float64]
NEVER = "No posterior selector was fitted for this pool yet: cook a soup, or ask for a selection, and look again."


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
    selector: SelectorRow
    sample: tuple[float, float] | None
    chosen: Chosen | None
    """What the selector says of the sample."""


def domain_map(registry: Registry, caller: Caller, pool: PoolRequest, sample: CheckedSample | None = None) -> DomainMap:
    """The map of a pool by its newest posterior selector.

    Raises NotFound where none was fitted, and what `registry.select` raises of the pool and the sample.
    """
    spec = PosteriorSpec()
    base, members = pool_of(registry, caller, pool)
    encoder = encoder_for(spec, base.encoders())
    row = answering(registry, members, spec, None if encoder is None else encoder.digest)
    if row is None:
        raise NotFound(NEVER)
    chosen = None
    if sample is not None:
        chosen = select(
            registry, caller, sample, pool=pool, spec=spec, options=SelectOptions(), fit=_replaced, scored=False
        )
        row = chosen.selector
    selector = cast(PosteriorSelector, loaded(registry, row))
    with registry.database.read() as catalogue:
        gone = gone_members(catalogue, row)
    to_plane, explained = plane(selector.places)
    posteriors: dict[str, float] = {}
    point = None
    if chosen is not None and chosen.vectors is not None:
        posteriors = {one.member.digest: one.score for one in chosen.ranking.ranked}
        x, y = to_plane(selector.place(chosen.vectors.array)[None])[0]
        point = (float(x), float(y))
    found = [
        Place(member, float(x), float(y), posteriors.get(member.digest))
        for member, (x, y) in zip(selector.members_, to_plane(selector.places), strict=True)
        if member.digest not in gone
    ]
    found.sort(key=lambda one: (-(one.posterior or 0.0), one.member.domain, one.member.digest))
    return DomainMap(tuple(found), explained, row, point, chosen)


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


def _replaced(*_: Any) -> SelectorRow:
    raise Unavailable("The pool's selector was replaced while this was asked: ask again.")
