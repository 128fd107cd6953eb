"""`cosine`: mean cosine between a sample and each domain (docs/explanation/methods.md#sentence-similarity).

The mean over all pairs is the dot product of the two means of unit vectors, so one mean a domain is stored. The
threshold depends on the encoder and the pool: by default it is the 5th percentile of the scores that the pool's domains
have with their own held-out text. The paper's is 0.15, for sentence-BERT.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from registry.errors import Internal
from registry.progress import Progress, Steps
from registry.selectors.contract import Arrays, Domain, Float64, Floats, check_sample, ordered_domains
from registry.selectors.drawing import MIN_UNITS, DomainDraw, proof_name
from registry.selectors.novelty import novelty
from registry.selectors.ranking import Evidence, Member, RankedCandidates, Ranking, best_first, split_excluded
from registry.selectors.stability import COMPETITORS, UnitScores
from registry.selectors.updating import Age, Change, UpdatableSelector, needs_whole_fit
from registry.spec import CosineSpec, SelectOptions

OWN_PERCENTILE = 5.0
STRICT_SHARE = 0.25
"""A threshold is warned of if more than this share of domains fails it with one half of their text for the other."""


@dataclass(frozen=True)
class Rows:
    """Arrays with a row for each domain that depends on no other domain.

    `means` (k, d) are of all unit vectors in the fit, `proof_means` (k, d) of those in the fit of the proof.
    `own_scores` (k,) are of held-out text with `proof_means`, `half_scores` (k,) of one half of a domain with the
    other. `units` (k,) is the number of units in the fit. The fields are named like the arrays of a stored state.
    """

    means: Float64
    proof_means: Float64
    own_scores: Float64
    half_scores: Float64
    units: npt.NDArray[np.int64]

    @classmethod
    def of(cls, draws: Iterable[DomainDraw], dimensions: int) -> Rows:
        """The rows of these domains, possibly none."""
        means, proof_means, own_scores, half_scores, units = [], [], [], [], []
        for draw in draws:
            means.append(_mean(draw.fit))
            proof_means.append(_mean(draw.proof_fit))
            own_scores.append(float(_mean(draw.held_out) @ proof_means[-1]))
            half_scores.append(_half_score(draw.fit))
            units.append(len(draw.fit))
        return cls(
            means=np.array(means).reshape(-1, dimensions),
            proof_means=np.array(proof_means).reshape(-1, dimensions),
            own_scores=np.array(own_scores, dtype=np.float64),
            half_scores=np.array(half_scores, dtype=np.float64),
            units=np.array(units, dtype=np.int64),
        )

    @cached_property
    def directions(self) -> npt.NDArray[np.float32]:
        """The means scaled to length 1, in single precision: the search for the nearest takes half the time."""
        return _unit(self.means).astype(np.float32)

    def nearest_distances(self, units: Float64, domains: npt.NDArray[np.int64]) -> Float64:
        """One minus the cosine (n, 1) of unit vectors (n, d) to the nearest mean of `domains`, by row number."""
        cosines = units.astype(np.float32) @ self.directions.T
        if len(domains) < len(self.means):
            cosines[:, np.setdiff1d(np.arange(len(self.means)), domains)] = -np.inf
        nearest = _unit(self.means[cosines.argmax(axis=1)])
        return np.asarray(1.0 - (units * nearest).sum(axis=1, keepdims=True))

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def updated(self, change: Change, new: Rows) -> Rows:
        """The rows after `change`, which added the domains of `new`."""
        return Rows(**{name: change.rows(array, new.arrays[name]) for name, array in self.arrays.items()})


class CosineSelector(UpdatableSelector[CosineSpec]):
    """Mean cosine with a threshold; learned: `members_`, `rows_`, `threshold_`, `own_distances_`, `report_`.

    Held-out vectors are stored as unit vectors.
    """

    kind: ClassVar[str] = "cosine"

    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Take the means of 100 units a domain, drawn with the spec's seed, and prove them on held-out units.

        Raises InvalidParameter for an empty pool, too few or unusable vectors.
        """
        steps = Steps(progress, 2)
        ordered = ordered_domains(domains, min_units=MIN_UNITS)
        self.age_ = Age.of(ordered)
        self.members_: tuple[Member, ...] = tuple(domain.member for domain in ordered)
        self.rows_ = Rows.of(map(self._draw, ordered), ordered[0].vectors.shape[1])
        steps.step("means taken")
        self._hold_out(ordered, {}, _unit)
        self._prove()
        steps.step("means proved on held-out units")
        return self

    def updated(self, added: Sequence[Domain], removed: Sequence[Domain]) -> Self | None:
        """The selector after these changes; None where a whole fit is needed (`registry.selectors.updating`)."""
        if needs_whole_fit(self.members_, self.age_, added, removed, has_shared_state=False):
            return None
        ordered = ordered_domains(added, min_units=MIN_UNITS) if added else []
        change = Change.of(self.members_, ordered, removed)
        new = type(self)(self.spec)
        new.members_, new.age_ = change.members, self.age_.after(added, removed)
        new.rows_ = self.rows_.updated(change, Rows.of(map(new._draw, ordered), self.rows_.means.shape[1]))
        new._hold_out(ordered, self.held_out_, _unit)
        new._prove()
        return new

    def _prove(self) -> None:
        """Set the threshold, the held-out distances and the report from the learned rows and the held-out vectors."""
        rows = self.rows_
        self.threshold_, source = self._calibrated_threshold()
        units, domain = self._held_out_units()
        distances = 1.0 - (units * _unit(rows.proof_means[domain])).sum(axis=1)
        self.own_distances_: Float64 = np.sort(distances)
        held_out_means = np.stack([vectors.mean(axis=0) for vectors in self.held_out_.values()])
        passing = (held_out_means @ rows.proof_means.T >= self.threshold_).sum(axis=1)
        predicted = (units.astype(np.float32) @ rows.proof_means.astype(np.float32).T).argmax(axis=1)
        self.report_: dict[str, Any] = {
            "domains": len(self.members_),
            "units_fitted": int(rows.units.sum()),
            "units_held_out": len(units),
            "held_out_by": proof_name(self.age_.cross_fit),
            "held_out_accuracy": float((predicted == domain).mean()),
            "own_scores": {m.domain: float(score) for m, score in zip(self.members_, rows.own_scores, strict=True)},
            "threshold": self.threshold_,
            "threshold_from": source,
            "domains_below_with_own_half": int((rows.half_scores < self.threshold_).sum()),
            "domains_passing": float(passing.mean()),
            "changes_since_whole_fit": self.age_.changed,
            "warnings": _warnings(passing, len(self.members_), self.threshold_),
        }

    def _calibrated_threshold(self) -> tuple[float, str]:
        """The threshold and its source."""
        if self.spec.threshold is not None:
            return self.spec.threshold, "spec"
        return float(np.percentile(self.rows_.own_scores, OWN_PERCENTILE)), "own_scores_5th_percentile"

    def rank(
        self, vectors: Floats, *, options: SelectOptions = SelectOptions(), exclude: Mapping[str, str] = {}
    ) -> Ranking:
        """Rank domains by similarity, passing with the threshold; raises InvalidSample as `check_sample` does."""
        units = _unit(check_sample(vectors, self.rows_.means.shape[1]))
        remaining, excluded = split_excluded(self.members_, exclude)
        scores = self.rows_.means @ units.mean(axis=0)
        threshold = self.threshold_ if options.threshold is None else options.threshold
        warnings = list(self.report_["warnings"])
        if options.threshold is not None or self.spec.threshold is not None:
            warnings += _too_strict(self.rows_.half_scores, threshold)
        if options.min_share is not None:
            warnings.append("'min_share' is an option of gmm selectors; cosine goes by 'threshold'.")
        order = best_first(scores, remaining)
        ranked = RankedCandidates(self.members_, order, scores[order], scores[order] >= threshold)
        competitors = order[:COMPETITORS]
        best = f"; the best is {ranked[0].member.domain} with {ranked[0].score:.4f}" if ranked else ""
        percent = (
            novelty(self.rows_.nearest_distances(units, remaining), self.own_distances_) if remaining.size else None
        )
        return Ranking(
            ranked=ranked,
            excluded=excluded,
            options=options,
            abstention=f"No domain reaches similarity {threshold:.4f}{best}.",
            failure=f"Similarity below {threshold:.4f}.",
            explain_failure=lambda score: f"Similarity {score:.4f} is below {threshold:.4f}.",
            units=UnitScores(units @ self.rows_.means[competitors].T, least=threshold, order=competitors),
            evidence=Evidence(
                units=len(units),
                thresholds={"similarity": threshold},
                novelty=percent,
                warnings=tuple(warnings),
            ),
        )

    def _arrays(self) -> Arrays:
        return {
            **self.rows_.arrays,
            "threshold": np.array([self.threshold_], dtype=np.float64),
            "own_distances": self.own_distances_,
            **self._arrays_for_updates(),
        }

    def _restore(self, arrays: Arrays) -> None:
        means, own_distances = arrays.get("means"), arrays.get("own_distances")
        if means is None or means.ndim != 2 or own_distances is None or own_distances.size == 0:
            raise Internal("Stored selector has no means: fit it again.")
        k, d = len(self.members_), means.shape[1]
        self.rows_ = Rows(
            means=self._floats(arrays, "means", k, d),
            proof_means=self._floats(arrays, "proof_means", k, d),
            own_scores=self._floats(arrays, "own_scores", k),
            half_scores=self._floats(arrays, "half_scores", k),
            units=self._array(arrays, "units", np.int64, (k,)),
        )
        self.own_distances_ = self._floats(arrays, "own_distances", own_distances.size)
        self.threshold_ = float(self._floats(arrays, "threshold", 1)[0])
        self._restore_age(arrays)
        self._restore_held_out(arrays, d)


def _unit(vectors: Float64) -> Float64:
    """The rows scaled to length 1; a zero row stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0))


def _mean(vectors: Float64) -> Float64:
    """The mean (d,) of a domain's vectors (n, d), each scaled to length 1."""
    return np.asarray(_unit(vectors).mean(axis=0))


def _half_score(vectors: Float64) -> float:
    """The score of a domain's vectors (n, d) with one half as the sample and the other as the domain."""
    half = len(vectors) // 2
    return float(_mean(vectors[:half]) @ _mean(vectors[half:]))


def _too_strict(half_scores: Float64, threshold: float) -> list[str]:
    """A warning where a requested threshold is above many half scores; a calibrated one never is."""
    below = int((half_scores < threshold).sum())
    if below <= STRICT_SHARE * len(half_scores):
        return []
    return [
        f"Threshold {threshold:.4f} is strict for this pool: {below} of {len(half_scores)} domains do not reach it "
        f"with one half of their own text against the other (median {np.median(half_scores):.4f}); without a "
        "threshold it is calibrated."
    ]


def _warnings(passing: npt.NDArray[np.int64], domains: int, threshold: float) -> list[str]:
    """A warning where the threshold separates domains poorly.

    `passing` has, for each domain with held-out text, the number of domains that reach the threshold with it.
    """
    if domains < 4 or passing.mean() <= domains / 2:
        return []
    return [
        f"Threshold {threshold:.4f} tells little apart: held-out text of one domain reaches it with "
        f"{passing.mean():.1f} of {domains} domains on average."
    ]
