"""`posterior`: how likely each domain is to have written the sample, as the weights of a soup.

One Gaussian a domain over principal components of mean-pooled base embeddings, all with one covariance, shrunk after
Ledoit and Wolf: the supervised twin of `gmm`, which needs no clusters since the labels are known. Posteriors are
tempered, because a soup wants two or three half-right adapters rather than the one most alike, and averaged over the
sample's units (docs/explanation/selection.md). The paper has none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np

from registry.errors import Internal
from registry.progress import Progress, Steps
from registry.selectors.contract import Arrays, Domain, Float64, Floats, Selector, check_sample, ordered_domains
from registry.selectors.drawing import MIN_UNITS, draw_units, labels
from registry.selectors.novelty import NOVEL, mahalanobis, novelty, strange_sample, whitening
from registry.selectors.projection import Projection, fit_projection
from registry.selectors.ranking import Candidate, Evidence, Member, Ranking, split_excluded
from registry.selectors.stability import COMPETITORS, UnitScores
from registry.spec import PosteriorSpec, SelectOptions

LIGHTEST = 1e-6
"""A domain with less is never taken: its weight in a recipe would be 0."""


@dataclass(frozen=True)
class Gaussians:
    """One Gaussian a domain: `means` (domains, m) behind `projection`, and `whiten` (m, m) for all of them."""

    projection: Projection
    means: Float64
    whiten: Float64

    def distances(self, vectors: Float64) -> Float64:
        """Mahalanobis distances (n, domains) of vectors (n, d) to the domains' means."""
        return mahalanobis(self.projection(vectors), self.means, self.whiten)


class PosteriorSelector(Selector[PosteriorSpec]):
    """Tempered posteriors of Gaussians; learned: `members_`, `gaussians_`, `own_distances_`, `report_`."""

    kind: ClassVar[str] = "posterior"

    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Learn a mean a domain and the covariance of 100 units each, drawn with the spec's seed.

        Raises InvalidParameter for an empty pool, too few or unusable vectors; whatever `progress` raises ends it.
        """
        steps = Steps(progress, 3)
        ordered = ordered_domains(domains, min_units=MIN_UNITS)
        drawn = draw_units(ordered, seed=self.spec.seed)
        steps.step("units drawn")
        proved, explained = _fit(drawn.proof_fit, dimensions=self.spec.dimensions)
        units, domain = np.concatenate(drawn.proof_test), labels(drawn.proof_test)
        distances = proved.distances(units)
        own = distances[np.arange(len(units)), domain]
        shares = _posteriors(distances, self.spec.temperature)
        steps.step("Gaussians proved on held-out units")
        if drawn.cross_fit:
            proved, explained = _fit(drawn.fitted, dimensions=self.spec.dimensions)
        self.members_: tuple[Member, ...] = tuple(one.member for one in ordered)
        self.gaussians_ = proved
        self.own_distances_: Float64 = np.sort(own)
        self.report_: dict[str, Any] = {
            "domains": len(ordered),
            "dimensions": len(proved.projection.components),
            "explained_variance": explained,
            "units_fitted": sum(map(len, drawn.fitted)),
            "units_held_out": len(units),
            "held_out_by": drawn.proof,
            "held_out_accuracy": float((distances.argmin(axis=1) == domain).mean()),
            "held_out_posterior": float(shares[np.arange(len(units)), domain].mean()),
            "warnings": [],
        }
        steps.step("Gaussians fitted on all units")
        return self

    def rank(
        self, vectors: Floats, *, options: SelectOptions = SelectOptions(), exclude: Mapping[str, str] = {}
    ) -> Ranking:
        """Domains by their mean posterior, which is also their weight; excluded ones share in none of it.

        Raises InvalidSample where the vectors are not this selector's encoder's.
        """
        points = check_sample(vectors, self.gaussians_.projection.mean.shape[0])
        kept, out = split_excluded(self.members_, exclude)
        distances = self.gaussians_.distances(points)[:, kept]
        strange = novelty(distances, self.own_distances_) if kept else None
        posteriors = _posteriors(distances, self.spec.temperature) if kept else np.empty((len(points), 0))
        shares = posteriors.mean(axis=0)
        order = sorted(range(len(kept)), key=lambda at: (-shares[at], at))
        least = max(self.spec.least if options.min_share is None else options.min_share, LIGHTEST)
        warnings = [] if strange is None or strange < NOVEL else [strange_sample(strange)]
        if options.threshold is not None:
            warnings.append("'threshold' is an option of cosine selectors; posterior goes by 'min_share'.")
        ranked = [
            Candidate(
                member=self.members_[kept[at]],
                score=float(shares[at]),
                weight=float(shares[at]),
                fails="" if shares[at] >= least else f"A posterior of {shares[at]:.4f}, below {least:g}.",
            )
            for at in order
        ]
        best_ranked = np.array(order[:COMPETITORS], dtype=np.int64)
        return Ranking(
            ranked=ranked,
            excluded=out,
            options=options,
            none_passes=f"No domain has a posterior of {least:g} on the sample.",
            units=UnitScores(posteriors[:, best_ranked], least=least, order=best_ranked),
            evidence=Evidence(
                units=len(points),
                scores={candidate.member.domain: candidate.score for candidate in ranked},
                thresholds={"min_share": least},
                novelty=strange,
                warnings=tuple(warnings),
            ),
        )

    def _arrays(self) -> Arrays:
        return {
            "projection_mean": self.gaussians_.projection.mean,
            "projection_components": self.gaussians_.projection.components,
            "means": self.gaussians_.means,
            "whiten": self.gaussians_.whiten,
            "own_distances": self.own_distances_,
        }

    def _restore(self, arrays: Arrays) -> None:
        components = arrays.get("projection_components")
        if components is None or components.ndim != 2:
            raise Internal("Stored selector has no projection: fit it again.")
        m, d = components.shape

        def floats(name: str, *shape: int) -> Float64:
            return cast(Float64, self._stored(arrays, name, np.float64, shape))

        self.own_distances_ = floats("own_distances", arrays.get("own_distances", np.empty(0)).size)
        self.gaussians_ = Gaussians(
            projection=Projection(mean=floats("projection_mean", d), components=floats("projection_components", m, d)),
            means=floats("means", len(self.members_), m),
            whiten=floats("whiten", m, m),
        )


def _fit(parts: Sequence[Float64], *, dimensions: int) -> tuple[Gaussians, float]:
    """The Gaussians of domains' vectors, each (n_i, d), and the share of the variance that their projection keeps."""
    vectors, domain = np.concatenate(parts), labels(parts)
    projected = fit_projection(vectors, dimensions=dimensions, drop_first=False)
    points = projected.projection(vectors)
    means = np.stack([points[domain == d].mean(axis=0) for d in range(len(parts))])
    gaussians = Gaussians(projection=projected.projection, means=means, whiten=whitening(points - means[domain]))
    return gaussians, projected.explained


def _posteriors(distances: Float64, temperature: float) -> Float64:
    """Posteriors (n, domains) of Gaussians at `distances` (n, domains), their log-densities times `temperature`."""
    from scipy.special import softmax

    return np.asarray(softmax(-0.5 * temperature * np.square(distances), axis=1))
