"""`cosine`: mean cosine between a sample and each domain (docs/explanation/methods.md#sentence-similarity).

The mean over all pairs is the dot product of the two means of unit vectors, so one mean a domain is stored. The
threshold belongs to the encoder and to the pool: unless one is asked for, such as the paper's 0.15 for sentence-BERT,
it is the 5th percentile of the scores the pool's domains have with themselves on other text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from registry.errors import Internal
from registry.progress import Progress, Steps
from registry.selectors.contract import Arrays, Domain, Float64, Floats, Selector, check_sample, ordered_domains
from registry.selectors.drawing import MIN_UNITS, draw_units, labels
from registry.selectors.novelty import novelty
from registry.selectors.ranking import Candidate, Evidence, Member, Ranking, split_excluded
from registry.selectors.stability import COMPETITORS, UnitScores
from registry.spec import CosineSpec, SelectOptions

OWN_PERCENTILE = 5.0
STRICT_SHARE = 0.25
"""A threshold that more than this share of domains does not reach with their own other half is worth a warning."""


class CosineSelector(Selector[CosineSpec]):
    """Mean cosine with a threshold; learned: `members_`, `means_` (k, d), `threshold_`, `report_`, and of own text:
    `own_distances_` of held-out units, sorted, and `half_scores_` (k,), of one half of each domain with its other.
    """

    kind: ClassVar[str] = "cosine"

    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Take the means of 100 units a domain, drawn with the spec's seed, and prove them on others.

        Raises InvalidParameter for an empty pool, too few or unusable vectors.
        """
        steps = Steps(progress, 2)
        ordered = ordered_domains(domains, min_units=MIN_UNITS)
        drawn = draw_units(ordered, seed=self.spec.seed)
        steps.step("units drawn")
        proof_means = _means(drawn.proof_fit)
        tests = [_unit(part) for part in drawn.proof_test]
        scores = np.stack([part.mean(axis=0) for part in tests]) @ proof_means.T  # (held-out domain, domain)
        units, domain = np.concatenate(tests), labels(tests)
        self.members_: tuple[Member, ...] = tuple(d.member for d in ordered)
        self.means_: Float64 = _means(drawn.fitted)
        self.half_scores_: Float64 = np.array([_half_score(part) for part in drawn.fitted])
        self.own_distances_: Float64 = np.sort(_distances(units, proof_means)[np.arange(len(units)), domain])
        self.threshold_, source = self._calibrated(np.diagonal(scores))
        passing = (scores >= self.threshold_).sum(axis=1)
        self.report_: dict[str, Any] = {
            "domains": len(ordered),
            "units_fitted": sum(map(len, drawn.fitted)),
            "units_held_out": len(units),
            "held_out_by": drawn.proof,
            "held_out_accuracy": float(((units @ proof_means.T).argmax(axis=1) == domain).mean()),
            "own_scores": {d.domain: float(score) for d, score in zip(ordered, np.diagonal(scores), strict=True)},
            "threshold": self.threshold_,
            "threshold_from": source,
            "domains_below_with_own_half": int((self.half_scores_ < self.threshold_).sum()),
            "domains_passing": float(passing.mean()),
            "warnings": _warnings(passing, self.threshold_),
        }
        steps.step("means proved on held-out units")
        return self

    def _calibrated(self, own_scores: Float64) -> tuple[float, str]:
        """The threshold and where it comes from."""
        if self.spec.threshold is not None:
            return self.spec.threshold, "spec"
        return float(np.percentile(own_scores, OWN_PERCENTILE)), "own_scores_5th_percentile"

    def rank(
        self, vectors: Floats, *, options: SelectOptions = SelectOptions(), exclude: Mapping[str, str] = {}
    ) -> Ranking:
        """Domains that reach the threshold, most similar first; raises InvalidSample as `check_sample` does."""
        units = _unit(check_sample(vectors, self.means_.shape[1]))
        kept, out = split_excluded(self.members_, exclude)
        scores = self.means_ @ units.mean(axis=0)
        threshold = self.threshold_ if options.threshold is None else options.threshold
        warnings = list(self.report_["warnings"])
        if options.threshold is not None or self.spec.threshold is not None:
            warnings += _too_strict(self.half_scores_, threshold)
        if options.min_share is not None:
            warnings.append("'min_share' is an option of gmm selectors; cosine goes by 'threshold'.")
        order = sorted(kept, key=lambda d: (-scores[d], d))
        ranked = [
            Candidate(
                member=self.members_[d],
                score=float(scores[d]),
                fails="" if scores[d] >= threshold else f"Similarity {scores[d]:.4f} is below {threshold:.4f}.",
            )
            for d in order
        ]
        best_ranked = np.array(order[:COMPETITORS], dtype=np.int64)
        best = f"; the best is {ranked[0].member.domain} with {ranked[0].score:.4f}" if ranked else ""
        return Ranking(
            ranked=ranked,
            excluded=out,
            options=options,
            none_passes=f"No domain reaches similarity {threshold:.4f}{best}.",
            units=UnitScores(units @ self.means_[best_ranked].T, least=threshold, order=best_ranked),
            evidence=Evidence(
                units=len(units),
                scores={candidate.member.domain: candidate.score for candidate in ranked},
                thresholds={"similarity": threshold},
                novelty=novelty(_distances(units, self.means_[kept]), self.own_distances_) if kept else None,
                warnings=tuple(warnings),
            ),
        )

    def _arrays(self) -> Arrays:
        threshold = np.array([self.threshold_], dtype=np.float64)
        return {"means": self.means_, "threshold": threshold, "own_distances": self.own_distances_,
                "half_scores": self.half_scores_}  # fmt: skip

    def _restore(self, arrays: Arrays) -> None:
        means, own = arrays.get("means"), arrays.get("own_distances")
        if means is None or means.ndim != 2 or own is None or own.size == 0:
            raise Internal("Stored selector has no means: fit it again.")
        self.means_ = self._stored(arrays, "means", np.float64, (len(self.members_), means.shape[1]))
        self.own_distances_ = self._stored(arrays, "own_distances", np.float64, (own.size,))
        self.half_scores_ = self._stored(arrays, "half_scores", np.float64, (len(self.members_),))
        self.threshold_ = float(self._stored(arrays, "threshold", np.float64, (1,))[0])


def _unit(vectors: Float64) -> Float64:
    """Rows of length 1; a zero row stays zero, it is similar to nothing."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0))


def _means(parts: Sequence[Float64]) -> Float64:
    return np.stack([_unit(part).mean(axis=0) for part in parts])


def _half_score(part: Float64) -> float:
    """The score of a domain's units (n, d) when one half of them is the sample and the other the domain."""
    one, other = _means((part[: len(part) // 2], part[len(part) // 2 :]))
    return float(one @ other)


def _too_strict(half_scores: Float64, threshold: float) -> list[str]:
    """What to know of a threshold that was asked for; a calibrated one is below most of these by construction."""
    below = int((half_scores < threshold).sum())
    if below <= STRICT_SHARE * len(half_scores):
        return []
    return [
        f"Threshold {threshold:.4f} is strict for this pool: {below} of {len(half_scores)} domains do not reach it "
        f"with one half of their own text against the other (median {np.median(half_scores):.4f}); without a "
        "threshold it is calibrated."
    ]


def _distances(units: Float64, means: Float64) -> Float64:
    """1 - cosine of every unit vector (n, d) to the direction of every mean (k, d)."""
    return np.asarray(1.0 - units @ _unit(means).T)


def _warnings(passing: npt.NDArray[np.int64], threshold: float) -> list[str]:
    """`passing` (k,): how many domains reach the threshold for held-out text of each."""
    if len(passing) < 4 or passing.mean() <= len(passing) / 2:
        return []
    return [
        f"Threshold {threshold:.4f} tells little apart: held-out text of one domain reaches it with "
        f"{passing.mean():.1f} of {len(passing)} domains on average."
    ]
