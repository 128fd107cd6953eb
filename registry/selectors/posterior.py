"""`posterior`: how likely each domain is to have written the sample, as the weights of a soup.

One Gaussian a domain over principal components of mean-pooled base embeddings, all with one covariance, shrunk after
Ledoit and Wolf: the supervised twin of `gmm`, which needs no clusters since the labels are known. Posteriors are
tempered, because a soup wants two or three half-right adapters rather than the one most alike, and averaged over the
sample's units (docs/explanation/selection.md). The paper has none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from registry.errors import Internal
from registry.progress import Progress, Steps
from registry.selectors.contract import Arrays, Domain, Float64, Floats, check_sample, ordered_domains
from registry.selectors.drawing import MIN_UNITS, proof_name
from registry.selectors.novelty import NOVEL, euclidean, mahalanobis, novelty, strange_sample, whitening_of
from registry.selectors.projection import FittedProjection, Projection, Spread
from registry.selectors.ranking import Evidence, Member, Ranked, Ranking, best_first, split_excluded
from registry.selectors.stability import COMPETITORS, UnitScores
from registry.selectors.updating import Age, Change, UpdatableSelector, blocks, is_due
from registry.spec import PosteriorSpec, SelectOptions

LIGHTEST = 1e-6
"""A domain with less is never taken: its weight in a recipe would be 0."""


@dataclass(frozen=True)
class Gaussians:
    """One Gaussian a domain behind a `projection`, with sums that they can be brought up to date by.

    `means` (domains, m); of the `count` residuals r to their own domains' means, `scatter` (m, m) sums r r' and
    `fourth` ||r||^4. `whiten` (m, m) follows from these three and is the same for all domains.
    """

    projection: Projection
    means: Float64
    count: int
    scatter: Float64
    fourth: float

    @cached_property
    def whiten(self) -> Float64:
        """W such that ||x W|| is the Mahalanobis norm."""
        return whitening_of(self.count, self.scatter, self.fourth)

    def distances(self, vectors: Float64) -> Float64:
        """Mahalanobis distances (n, domains) of vectors (n, d) to the domains' means."""
        return self.distances_at(self.projection(vectors))

    def distances_at(self, points: Float64) -> Float64:
        """The same of points (n, m) of the projection."""
        return mahalanobis(points, self.means, self.whiten)

    def updated(self, change: Change, new: Gaussians, old: Gaussians) -> Gaussians:
        """After the domains of `new` came and those of `old` went, both behind this projection, which stays."""
        return replace(
            self,
            means=change.rows(self.means, new.means),
            count=self.count + new.count - old.count,
            scatter=self.scatter + new.scatter - old.scatter,
            fourth=self.fourth + new.fourth - old.fourth,
        )


@dataclass
class Sums:
    """What Gaussians follow from, taken in domain by domain: vectors are let go once they are added."""

    projection: Projection
    means: list[Float64] = field(default_factory=list)
    count: int = 0
    fourth: float = 0.0
    scatter: Float64 = field(init=False)

    def __post_init__(self) -> None:
        self.scatter = np.zeros((self._dimensions, self._dimensions))

    @property
    def _dimensions(self) -> int:
        return len(self.projection.components)

    def add(self, vectors: Float64) -> None:
        """Take in the next domain, by its vectors (n, d)."""
        points = self.projection(vectors)
        self.means.append(points.mean(axis=0))
        residuals = points - self.means[-1]
        self.count += len(residuals)
        self.scatter += residuals.T @ residuals
        self.fourth += float(np.square(np.square(residuals).sum(axis=1)).sum())

    def gaussians(self) -> Gaussians:
        """Those of the domains so far, of which there may be none."""
        means = np.array(self.means).reshape(-1, self._dimensions)
        return Gaussians(self.projection, means, self.count, self.scatter, self.fourth)


class PosteriorSelector(UpdatableSelector[PosteriorSpec]):
    """Tempered posteriors of Gaussians; learned: `members_`, `gaussians_`, `own_distances_`, `report_`.

    To be updated it also keeps `proved_` (Gaussians that have not seen what they are proved on: `gaussians_`, but
    for a split of 80/20). Held-out vectors are kept as points of its projection.
    """

    kind: ClassVar[str] = "posterior"

    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Learn a mean a domain and the covariance of 100 units each, drawn with the spec's seed.

        Raises InvalidParameter for an empty pool, too few or unusable vectors; whatever `progress` raises ends it.
        """
        steps = Steps(progress, 3)
        ordered = ordered_domains(domains, min_units=MIN_UNITS)
        self.age_ = Age.of(ordered)
        proved, kept = self._projections(ordered)
        steps.step("principal components found")
        return self._learn(ordered, proved, kept, steps)

    def fit_behind(self, projections: tuple[FittedProjection, FittedProjection], domains: Sequence[Domain]) -> Self:
        """Learn all but the projections, of the proof and of what is kept: what updates come to."""
        ordered = ordered_domains(domains, min_units=MIN_UNITS)
        self.age_ = Age.of(ordered)
        return self._learn(ordered, *projections, Steps(None, 2))

    def _learn(self, ordered: Sequence[Domain], proved: FittedProjection, kept: FittedProjection, steps: Steps) -> Self:
        self.members_: tuple[Member, ...] = tuple(one.member for one in ordered)
        self.explained_ = kept.explained
        self.proved_, self.gaussians_ = self._gaussians(ordered, proved.projection, kept.projection)
        steps.step("Gaussians fitted")
        self._hold_out(ordered, {}, self.proved_.projection)
        self._settle()
        steps.step("Gaussians proved on held-out units")
        return self

    def updated(self, added: Sequence[Domain], removed: Sequence[Domain]) -> Self | None:
        """This selector after domains came and went, None where a whole fit is due (`registry.selectors.updating`).

        Projections stay as the last whole fit found them; all else is as if it were fitted behind them.
        """
        if is_due(self.members_, self.age_, added, removed, learns_of_all=True):
            return None
        ordered = ordered_domains([*added], min_units=MIN_UNITS) if added else []
        change = Change.of(self.members_, ordered, removed)
        new = type(self)(self.spec)
        new.members_, new.explained_ = change.members, self.explained_
        new.age_ = self.age_.after(added, removed)
        projections = self.proved_.projection, self.gaussians_.projection
        came, went = (new._gaussians(some, *projections) for some in (ordered, removed))
        new.proved_ = new.gaussians_ = self.proved_.updated(change, came[0], went[0])
        if new.age_.cross_fit:
            new.gaussians_ = self.gaussians_.updated(change, came[1], went[1])
        new._hold_out(ordered, self.held_out_, new.proved_.projection)
        new._settle()
        return new

    def _projections(self, ordered: Sequence[Domain]) -> tuple[FittedProjection, FittedProjection]:
        """Principal components of what the proof learns from, and of what the selector kept learns from."""
        origin = ordered[0].vectors[:1][0].astype(np.float64)
        proof, rest = Spread(origin), Spread(origin)
        for one in ordered:
            drawn = self._draw(one)
            proof.add(drawn.proof_fit)
            if self.age_.cross_fit:
                rest.add(drawn.proof_test)
        found = proof.projection(dimensions=self.spec.dimensions)
        if not self.age_.cross_fit:
            return found, found
        return found, proof.with_more(rest).projection(dimensions=self.spec.dimensions)

    def _gaussians(
        self, domains: Sequence[Domain], proved: Projection, kept: Projection
    ) -> tuple[Gaussians, Gaussians]:
        """Those of the proof and those that are kept, of domains that are read once; there may be none."""
        proof, whole = Sums(proved), Sums(kept)
        for one in domains:
            drawn = self._draw(one)
            proof.add(drawn.proof_fit)
            if self.age_.cross_fit:
                whole.add(drawn.fitted)
        found = proof.gaussians()
        return found, whole.gaussians() if self.age_.cross_fit else found

    def _settle(self) -> None:
        """The proof, and the report: what follows from all the rest."""
        units, domain = self._held_out_units()
        points = units @ self.proved_.whiten
        centres = self.proved_.means @ self.proved_.whiten
        own, likely, nearest = np.empty(len(points)), np.empty(len(points)), np.empty(len(points), np.int64)
        for some in blocks(len(points), len(centres)):
            distances = euclidean(points[some], centres)
            itself = np.arange(len(distances)), domain[some]
            own[some], nearest[some] = distances[itself], distances.argmin(axis=1)
            likely[some] = _posteriors(distances, self.spec.temperature)[itself]
        self.own_distances_: Float64 = np.sort(own)
        self.report_: dict[str, Any] = {
            "domains": len(self.members_),
            "dimensions": len(self.gaussians_.projection.components),
            "explained_variance": self.explained_,
            "units_fitted": self.gaussians_.count,
            "units_held_out": len(domain),
            "held_out_by": proof_name(self.age_.cross_fit),
            "held_out_accuracy": float((nearest == domain).mean()),
            "held_out_posterior": float(likely.mean()),
            "changes_since_whole_fit": self.age_.changed,
            "warnings": [],
        }

    def rank(
        self, vectors: Floats, *, options: SelectOptions = SelectOptions(), exclude: Mapping[str, str] = {}
    ) -> Ranking:
        """Domains by their mean posterior, which is also their weight; excluded ones share in none of it.

        Raises InvalidSample where the vectors are not this selector's encoder's.
        """
        points = check_sample(vectors, self.gaussians_.projection.mean.shape[0])
        kept, out = split_excluded(self.members_, exclude)
        distances = self.gaussians_.distances(points)
        if out:
            distances = distances[:, kept]
        strange = novelty(distances, self.own_distances_) if kept else None
        posteriors = _posteriors(distances, self.spec.temperature) if kept else np.empty((len(points), 0))
        shares = posteriors.mean(axis=0)
        order = best_first(shares, range(len(kept)))
        least = max(self.spec.least if options.min_share is None else options.min_share, LIGHTEST)
        warnings = [] if strange is None or strange < NOVEL else [strange_sample(strange)]
        if options.threshold is not None:
            warnings.append("'threshold' is an option of cosine selectors; posterior goes by 'min_share'.")
        numbers = np.array(kept, dtype=np.int64)[order]
        ranked = Ranked(self.members_, numbers, shares[order], shares[order] >= least, weighted=True)
        best_ranked = order[:COMPETITORS]
        return Ranking(
            ranked=ranked,
            excluded=out,
            options=options,
            none_passes=f"No domain has a posterior of {least:g} on the sample.",
            failing=f"A posterior below {least:g}.",
            fails=lambda share: f"A posterior of {share:.4f}, below {least:g}.",
            units=UnitScores(posteriors[:, best_ranked], least=least, order=best_ranked),
            evidence=Evidence(
                units=len(points),
                thresholds={"min_share": least},
                novelty=strange,
                warnings=tuple(warnings),
            ),
        )

    @property
    def places(self) -> Float64:
        """Where the members' domains lie (members, dimensions): the means of their Gaussians."""
        return self.gaussians_.means

    def place(self, vectors: Floats) -> Float64:
        """Where a sample (n, d) lies among them (dimensions,); raises InvalidSample for another encoder's vectors."""
        points = check_sample(vectors, self.gaussians_.projection.mean.shape[0])
        found: Float64 = self.gaussians_.projection(points).mean(axis=0)
        return found

    def _arrays(self) -> Arrays:
        return {
            **self._arrays_for_updates(),
            **_stored_gaussians("", self.gaussians_),
            **(_stored_gaussians("proof_", self.proved_) if self.age_.cross_fit else {}),
            "own_distances": self.own_distances_,
            "explained": np.array([self.explained_]),
        }

    def _restore(self, arrays: Arrays) -> None:
        self._restore_age(arrays)
        self.explained_ = float(self._floats(arrays, "explained", 1)[0])
        self.own_distances_ = self._floats(arrays, "own_distances", arrays.get("own_distances", np.empty(0)).size)
        self.gaussians_ = self._restored_gaussians(arrays, "")
        self.proved_ = self._restored_gaussians(arrays, "proof_") if self.age_.cross_fit else self.gaussians_
        self._restore_held_out(arrays, len(self.proved_.projection.components))

    def _restored_gaussians(self, arrays: Arrays, prefix: str) -> Gaussians:
        components = arrays.get(f"{prefix}projection_components")
        if components is None or components.ndim != 2:
            raise Internal("Stored selector has no projection: fit it again.")
        m, d = components.shape

        return Gaussians(
            projection=Projection(
                mean=self._floats(arrays, prefix + "projection_mean", d),
                components=self._floats(arrays, prefix + "projection_components", m, d),
            ),
            means=self._floats(arrays, prefix + "means", len(self.members_), m),
            count=int(self._stored(arrays, f"{prefix}count", np.int64, (1,))[0]),
            scatter=self._floats(arrays, prefix + "scatter", m, m),
            fourth=float(self._floats(arrays, prefix + "fourth", 1)[0]),
        )


def _stored_gaussians(prefix: str, gaussians: Gaussians) -> dict[str, Any]:
    return {
        f"{prefix}projection_mean": gaussians.projection.mean,
        f"{prefix}projection_components": gaussians.projection.components,
        f"{prefix}means": gaussians.means,
        f"{prefix}count": np.array([gaussians.count], dtype=np.int64),
        f"{prefix}scatter": gaussians.scatter,
        f"{prefix}fourth": np.array([gaussians.fourth]),
    }


def _posteriors(distances: Float64, temperature: float) -> Float64:
    """Posteriors (n, domains) of Gaussians at `distances` (n, domains), their log-densities times `temperature`."""
    found = np.square(distances)  # in place: scipy's softmax makes several more arrays of this size
    found *= -0.5 * temperature
    found -= found.max(axis=1, keepdims=True)
    np.exp(found, out=found)
    found /= found.sum(axis=1, keepdims=True)
    return found
