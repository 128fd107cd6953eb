"""`posterior`: the mean posterior of each domain on a sample, used as its weight in a soup.

One Gaussian a domain over principal components of mean-pooled base embeddings, all with one covariance, shrunk after
Ledoit and Wolf: the supervised counterpart of `gmm`. Posteriors are tempered, because several partly matching adapters
make a better soup than the closest alone, and averaged over the sample's units (docs/explanation/selection.md). It is
not in the paper.
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
from registry.selectors.mahalanobis import euclidean, whitening_of
from registry.selectors.novelty import NOVEL, novelty, novelty_warning
from registry.selectors.projection import FittedProjection, Projection, Spread
from registry.selectors.ranking import Evidence, Member, RankedCandidates, Ranking, best_first, split_excluded
from registry.selectors.stability import COMPETITORS, UnitScores
from registry.selectors.updating import Age, Change, UpdatableSelector, blocks, needs_whole_fit
from registry.spec import PosteriorSpec, SelectOptions

MIN_WEIGHT = 1e-6
"""The least posterior of a chosen domain: below, its weight in a recipe would round to 0."""


@dataclass(frozen=True)
class Gaussians:
    """One Gaussian a domain over the coordinates of a `projection`, as sums that can be updated.

    `means` (domains, m). Over the `count` residuals r to their own domain's mean, `scatter` (m, m) sums r r' and
    `fourth` sums ||r||^4; the shared covariance is computed from these three.
    """

    projection: Projection
    means: Float64
    count: int
    scatter: Float64
    fourth: float

    @cached_property
    def whiten(self) -> Float64:
        """W (m, m) such that ||x W|| is the Mahalanobis norm."""
        return whitening_of(self.count, self.scatter, self.fourth)

    @cached_property
    def centres(self) -> Float64:
        """The domains' means in the space where the Mahalanobis distance is the Euclidean one (domains, m)."""
        return self.means @ self.whiten

    def distances(self, vectors: Float64) -> Float64:
        """Mahalanobis distances (n, domains) of vectors (n, d) to the domains' means."""
        return euclidean(self.projection(vectors) @ self.whiten, self.centres)

    def updated(self, change: Change, added: Gaussians, removed: Gaussians) -> Gaussians:
        """The Gaussians after `change`; those of the domains it adds and removes have the same projection."""
        return replace(
            self,
            means=change.rows(self.means, added.means),
            count=self.count + added.count - removed.count,
            scatter=self.scatter + added.scatter - removed.scatter,
            fourth=self.fourth + added.fourth - removed.fourth,
        )


@dataclass
class GaussianSums:
    """Accumulates Gaussians domain by domain, without holding on to vectors."""

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
        """Add a domain by its vectors (n, d)."""
        points = self.projection(vectors)
        self.means.append(points.mean(axis=0))
        residuals = points - self.means[-1]
        self.count += len(residuals)
        self.scatter += residuals.T @ residuals
        self.fourth += float(np.square(np.square(residuals).sum(axis=1)).sum())

    def gaussians(self) -> Gaussians:
        """The Gaussians of the domains added so far, possibly none."""
        means = np.array(self.means).reshape(-1, self._dimensions)
        return Gaussians(self.projection, means, self.count, self.scatter, self.fourth)


class PosteriorSelector(UpdatableSelector[PosteriorSpec]):
    """Tempered posteriors of Gaussians; learned: `members_`, `gaussians_`, `own_distances_`, `report_`.

    For updates it also stores `proof_gaussians_`, fitted without the held-out units; they differ from `gaussians_` only
    with an 80/20 split. Held-out vectors are stored as coordinates of the projection of the proof.
    """

    kind: ClassVar[str] = "posterior"

    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Fit a mean a domain and a shared covariance on 100 units each, drawn with the spec's seed.

        Raises InvalidParameter for an empty pool, too few or unusable vectors, and what `progress` raises.
        """
        steps = Steps(progress, 3)
        ordered = ordered_domains(domains, min_units=MIN_UNITS)
        self.age_ = Age.of(ordered)
        proof, final = self._projections(ordered)
        steps.step("principal components found")
        self.members_: tuple[Member, ...] = tuple(domain.member for domain in ordered)
        self.explained_ = final.explained
        self.proof_gaussians_, self.gaussians_ = self._gaussians(ordered, proof.projection, final.projection)
        steps.step("Gaussians fitted")
        self._hold_out(ordered, {}, self.proof_gaussians_.projection)
        self._prove()
        steps.step("Gaussians proved on held-out units")
        return self

    def updated(self, added: Sequence[Domain], removed: Sequence[Domain]) -> Self | None:
        """The selector after these changes; None where a whole fit is needed (`registry.selectors.updating`).

        Equal to a fit of the resulting domains with the projections of the last whole fit.
        """
        if needs_whole_fit(self.members_, self.age_, added, removed, has_shared_state=True):
            return None
        ordered = ordered_domains([*added], min_units=MIN_UNITS) if added else []
        change = Change.of(self.members_, ordered, removed)
        new = type(self)(self.spec)
        new.members_, new.explained_ = change.members, self.explained_
        new.age_ = self.age_.after(added, removed)
        proof, final = self.proof_gaussians_.projection, self.gaussians_.projection
        added_proof, added_final = new._gaussians(ordered, proof, final)
        removed_proof, removed_final = new._gaussians(removed, proof, final)
        new.proof_gaussians_ = new.gaussians_ = self.proof_gaussians_.updated(change, added_proof, removed_proof)
        if new.age_.cross_fit:
            new.gaussians_ = self.gaussians_.updated(change, added_final, removed_final)
        new._hold_out(ordered, self.held_out_, new.proof_gaussians_.projection)
        new._prove()
        return new

    def _projections(self, ordered: Sequence[Domain]) -> tuple[FittedProjection, FittedProjection]:
        """Principal components of the units that the proof is fitted on, and of those the final selector is."""
        origin = ordered[0].vectors[:1][0].astype(np.float64)
        proof_sums, held_out_sums = Spread(origin), Spread(origin)
        for domain in ordered:
            draw = self._draw(domain)
            proof_sums.add(draw.proof_fit)
            if self.age_.cross_fit:
                held_out_sums.add(draw.held_out)
        proof = proof_sums.projection(dimensions=self.spec.dimensions)
        if not self.age_.cross_fit:
            return proof, proof
        return proof, (proof_sums + held_out_sums).projection(dimensions=self.spec.dimensions)

    def _gaussians(
        self, domains: Sequence[Domain], proof: Projection, final: Projection
    ) -> tuple[Gaussians, Gaussians]:
        """The Gaussians of the proof and the final ones of these domains, possibly none, each read once."""
        proof_sums, final_sums = GaussianSums(proof), GaussianSums(final)
        for domain in domains:
            draw = self._draw(domain)
            proof_sums.add(draw.proof_fit)
            if self.age_.cross_fit:
                final_sums.add(draw.fit)
        proof_gaussians = proof_sums.gaussians()
        return proof_gaussians, final_sums.gaussians() if self.age_.cross_fit else proof_gaussians

    def _prove(self) -> None:
        """Set the held-out distances and the report from the learned Gaussians and the held-out vectors."""
        units, domain = self._held_out_units()
        points = units @ self.proof_gaussians_.whiten
        centres = self.proof_gaussians_.centres
        own_distances, posterior = np.empty(len(points)), np.empty(len(points))
        nearest = np.empty(len(points), np.int64)
        for block in blocks(len(points), len(centres)):
            distances = euclidean(points[block], centres)
            own_cells = np.arange(len(distances)), domain[block]
            own_distances[block], nearest[block] = distances[own_cells], distances.argmin(axis=1)
            posterior[block] = _posteriors(distances, self.spec.temperature)[own_cells]
        self.own_distances_: Float64 = np.sort(own_distances)
        self.report_: dict[str, Any] = {
            "domains": len(self.members_),
            "dimensions": len(self.gaussians_.projection.components),
            "explained_variance": self.explained_,
            "units_fitted": self.gaussians_.count,
            "units_held_out": len(domain),
            "held_out_by": proof_name(self.age_.cross_fit),
            "held_out_accuracy": float((nearest == domain).mean()),
            "held_out_posterior": float(posterior.mean()),
            "changes_since_whole_fit": self.age_.changed,
            "warnings": [],
        }

    def rank(
        self, vectors: Floats, *, options: SelectOptions = SelectOptions(), exclude: Mapping[str, str] = {}
    ) -> Ranking:
        """Rank domains by their mean posterior, which is also their weight, over those that are not excluded.

        Raises InvalidSample as `check_sample` does.
        """
        checked = check_sample(vectors, self.gaussians_.projection.mean.shape[0])
        remaining, excluded = split_excluded(self.members_, exclude)
        distances = self.gaussians_.distances(checked)
        if excluded:
            distances = distances[:, remaining]
        percent = novelty(distances, self.own_distances_) if remaining.size else None
        posteriors = _posteriors(distances, self.spec.temperature) if remaining.size else np.empty((len(checked), 0))
        shares = posteriors.mean(axis=0)  # `stability` forms the same mean for each draw
        order = best_first(shares, np.arange(len(remaining)))
        least = max(self.spec.least if options.min_share is None else options.min_share, MIN_WEIGHT)
        warnings = [] if percent is None or percent < NOVEL else [novelty_warning(percent)]
        if options.threshold is not None:
            warnings.append("'threshold' is an option of cosine selectors; posterior goes by 'min_share'.")
        members = remaining[order]
        competitors = order[:COMPETITORS]
        return Ranking(
            ranked=RankedCandidates(self.members_, members, shares[order], shares[order] >= least, weighted=True),
            excluded=excluded,
            options=options,
            abstention=f"No domain has a posterior of {least:g} on the sample.",
            failure=f"A posterior below {least:g}.",
            explain_failure=lambda share: f"A posterior of {share:.4f}, below {least:g}.",
            units=UnitScores(posteriors[:, competitors], least=least, order=competitors),
            evidence=Evidence(
                units=len(checked),
                thresholds={"min_share": least},
                novelty=percent,
                warnings=tuple(warnings),
            ),
        )

    def sample_point(self, vectors: Floats) -> Float64:
        """The mean point (dimensions,) of a sample (n, d) in the projection; raises InvalidSample as `check_sample`."""
        checked = check_sample(vectors, self.gaussians_.projection.mean.shape[0])
        point: Float64 = self.gaussians_.projection(checked).mean(axis=0)
        return point

    def _arrays(self) -> Arrays:
        return {
            **self._arrays_for_updates(),
            **_stored_gaussians("", self.gaussians_),
            **(_stored_gaussians("proof_", self.proof_gaussians_) if self.age_.cross_fit else {}),
            "own_distances": self.own_distances_,
            "explained": np.array([self.explained_]),
        }

    def _restore(self, arrays: Arrays) -> None:
        self._restore_age(arrays)
        self.explained_ = float(self._floats(arrays, "explained", 1)[0])
        self.own_distances_ = self._floats(arrays, "own_distances", arrays.get("own_distances", np.empty(0)).size)
        self.gaussians_ = self._restored_gaussians(arrays, "")
        self.proof_gaussians_ = self._restored_gaussians(arrays, "proof_") if self.age_.cross_fit else self.gaussians_
        self._restore_held_out(arrays, len(self.proof_gaussians_.projection.components))

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
            count=int(self._array(arrays, f"{prefix}count", np.int64, (1,))[0]),
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
    """Posteriors (n, domains) of Gaussians at `distances` (n, domains), with log-densities times `temperature`."""
    posteriors = np.square(distances)  # in place: scipy's softmax makes several more arrays of this size
    posteriors *= -0.5 * temperature
    posteriors -= posteriors.max(axis=1, keepdims=True)
    np.exp(posteriors, out=posteriors)
    posteriors /= posteriors.sum(axis=1, keepdims=True)
    return posteriors
