"""`cosine`: mean cosine between a sample and each domain (docs/explanation/methods.md#sentence-similarity).

The mean over all pairs is the dot product of the two means of unit vectors, so one mean a domain is stored. The
threshold belongs to the encoder and to the pool: unless one is asked for, such as the paper's 0.15 for sentence-BERT,
it is the 5th percentile of the scores the pool's domains have with themselves on other text.
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
from registry.selectors.ranking import Evidence, Member, Ranked, Ranking, best_first, split_excluded
from registry.selectors.stability import COMPETITORS, UnitScores
from registry.selectors.updating import Age, Change, UpdatableSelector, is_due
from registry.spec import CosineSpec, SelectOptions

OWN_PERCENTILE = 5.0
BLOCK = 4_096
STRICT_SHARE = 0.25
"""A threshold that more than this share of domains does not reach with their own other half is worth a warning."""


@dataclass(frozen=True)
class Rows:
    """What is learnt of each domain by itself, a row a domain.

    `means` (k, d) of unit vectors, `proof_means` of those that the proof learns from; `own_scores` (k,) of held-out
    text, `half_scores` (k,) of one half of a domain with its other, `units` (k,) learnt from.
    """

    means: Float64
    proof_means: Float64
    own_scores: Float64
    half_scores: Float64
    units: npt.NDArray[np.int64]

    @classmethod
    def of(cls, parts: Iterable[DomainDraw], dimensions: int) -> Rows:
        """The rows of these domains; there may be none."""
        rows: list[tuple[Float64, Float64, float, float, int]] = []
        for part in parts:
            proof = _mean(part.proof_fit)
            own = float(_mean(part.proof_test) @ proof)
            rows.append((_mean(part.fitted), proof, own, _half_score(part.fitted), len(part.fitted)))
        return cls(
            means=np.array([row[0] for row in rows]).reshape(-1, dimensions),
            proof_means=np.array([row[1] for row in rows]).reshape(-1, dimensions),
            own_scores=np.array([row[2] for row in rows], dtype=np.float64),
            half_scores=np.array([row[3] for row in rows], dtype=np.float64),
            units=np.array([row[4] for row in rows], dtype=np.int64),
        )

    @cached_property
    def directions(self) -> npt.NDArray[np.float32]:
        """The means, scaled to length 1; half as precise, to find who is nearest in half the time."""
        found = np.empty(self.means.shape, np.float32)
        for begin in range(0, len(found), BLOCK):  # the means may be in a file, larger than memory has room for
            found[begin : begin + BLOCK] = _unit(self.means[begin : begin + BLOCK])
        return found

    def nearest(self, units: Float64, kept: Sequence[int]) -> Float64:
        """One minus the cosine (n, 1) of unit vectors (n, d) to the nearest mean of those that are `kept`."""
        cosines = units.astype(np.float32) @ self.directions.T
        if len(kept) < len(self.means):
            cosines[:, np.setdiff1d(np.arange(len(self.means)), kept)] = -np.inf
        found = _unit(self.means[cosines.argmax(axis=1)])
        return np.asarray(1.0 - (units * found).sum(axis=1, keepdims=True))

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What is learnt, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def updated(self, change: Change, new: Rows) -> Rows:
        """After domains came, whose rows are `new`, and went."""
        return Rows(**{name: change.rows(before, new.arrays[name]) for name, before in self.arrays.items()})


class CosineSelector(UpdatableSelector[CosineSpec]):
    """Mean cosine with a threshold; learned: `members_`, `rows_`, `threshold_`, `own_distances_`, `report_`.

    Held-out vectors are kept as unit vectors.
    """

    kind: ClassVar[str] = "cosine"

    @property
    def means_(self) -> Float64:
        """The domains' means of unit vectors (k, d)."""
        return self.rows_.means

    @property
    def kept_bytes(self) -> int:
        """Those of the means' directions."""
        return 4 * self.means_.size

    @property
    def half_scores_(self) -> Float64:
        """The score (k,) of one half of each domain's text with its other half."""
        return self.rows_.half_scores

    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Take the means of 100 units a domain, drawn with the spec's seed, and prove them on others.

        Raises InvalidParameter for an empty pool, too few or unusable vectors.
        """
        steps = Steps(progress, 2)
        ordered = ordered_domains(domains, min_units=MIN_UNITS)
        self.age_ = Age.of(ordered)
        self.members_: tuple[Member, ...] = tuple(one.member for one in ordered)
        self.rows_ = Rows.of(map(self._draw, ordered), ordered[0].vectors.shape[1])
        steps.step("means taken")
        self._hold_out(ordered, {}, _unit)
        self._settle()
        steps.step("means proved on held-out units")
        return self

    def updated(self, added: Sequence[Domain], removed: Sequence[Domain]) -> Self | None:
        """This selector after domains came and went, None where a whole fit is due (`registry.selectors.updating`)."""
        if is_due(self.members_, self.age_, added, removed, learns_of_all=False):
            return None
        ordered = ordered_domains(added, min_units=MIN_UNITS) if added else []
        change = Change.of(self.members_, ordered, removed)
        new = type(self)(self.spec)
        new.members_, new.age_ = change.members, self.age_.after(added, removed)
        new.rows_ = self.rows_.updated(change, Rows.of(map(new._draw, ordered), self.means_.shape[1]))
        new._hold_out(ordered, self.held_out_, _unit)
        new._settle()
        return new

    def _settle(self) -> None:
        """The threshold, the proof and the report: what follows from all the rest."""
        rows = self.rows_
        self.threshold_, source = self._calibrated(rows.own_scores)
        units, domain = self._held_out_units()
        own = 1.0 - (units * _unit(rows.proof_means[domain])).sum(axis=1)
        self.own_distances_: Float64 = np.sort(own)
        tested = np.stack([part.mean(axis=0) for part in self.held_out_.values()])
        passing = (tested @ rows.proof_means.T >= self.threshold_).sum(axis=1)
        taken_for = (units.astype(np.float32) @ rows.proof_means.astype(np.float32).T).argmax(axis=1)
        self.report_: dict[str, Any] = {
            "domains": len(self.members_),
            "units_fitted": int(rows.units.sum()),
            "units_held_out": len(units),
            "held_out_by": proof_name(self.age_.cross_fit),
            "held_out_accuracy": float((taken_for == domain).mean()),
            "own_scores": {m.domain: float(score) for m, score in zip(self.members_, rows.own_scores, strict=True)},
            "threshold": self.threshold_,
            "threshold_from": source,
            "domains_below_with_own_half": int((rows.half_scores < self.threshold_).sum()),
            "domains_passing": float(passing.mean()),
            "changes_since_whole_fit": self.age_.changed,
            "warnings": _warnings(passing, len(self.members_), self.threshold_),
        }

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
        order = best_first(scores, kept)
        ranked = Ranked(self.members_, order, scores[order], scores[order] >= threshold)
        best_ranked = order[:COMPETITORS]
        best = f"; the best is {ranked[0].member.domain} with {ranked[0].score:.4f}" if ranked else ""
        return Ranking(
            ranked=ranked,
            excluded=out,
            options=options,
            none_passes=f"No domain reaches similarity {threshold:.4f}{best}.",
            failing=f"Similarity below {threshold:.4f}.",
            fails=lambda score: f"Similarity {score:.4f} is below {threshold:.4f}.",
            units=UnitScores(units @ self.means_[best_ranked].T, least=threshold, order=best_ranked),
            evidence=Evidence(
                units=len(units),
                thresholds={"similarity": threshold},
                novelty=novelty(self.rows_.nearest(units, kept), self.own_distances_) if kept else None,
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
        means, own = arrays.get("means"), arrays.get("own_distances")
        if means is None or means.ndim != 2 or own is None or own.size == 0:
            raise Internal("Stored selector has no means: fit it again.")
        k, d = len(self.members_), means.shape[1]

        self.rows_ = Rows(
            means=self._floats(arrays, "means", k, d),
            proof_means=self._floats(arrays, "proof_means", k, d),
            own_scores=self._floats(arrays, "own_scores", k),
            half_scores=self._floats(arrays, "half_scores", k),
            units=self._stored(arrays, "units", np.int64, (k,)),
        )
        self.own_distances_ = self._floats(arrays, "own_distances", own.size)
        self.threshold_ = float(self._floats(arrays, "threshold", 1)[0])
        self._restore_age(arrays)
        self._restore_held_out(arrays, d)


def _unit(vectors: Float64) -> Float64:
    """Rows of length 1; a zero row stays zero, it is similar to nothing."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms > 0, norms, 1.0))


def _mean(part: Float64) -> Float64:
    """The mean (d,) of the unit vectors of a domain's vectors (n, d)."""
    return np.asarray(_unit(part).mean(axis=0))


def _half_score(part: Float64) -> float:
    """The score of a domain's units (n, d) when one half of them is the sample and the other the domain."""
    half = len(part) // 2
    return float(_mean(part[:half]) @ _mean(part[half:]))


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


def _warnings(passing: npt.NDArray[np.int64], domains: int, threshold: float) -> list[str]:
    """`passing` (proved on,): how many domains reach the threshold for held-out text of each."""
    if domains < 4 or passing.mean() <= domains / 2:
        return []
    return [
        f"Threshold {threshold:.4f} tells little apart: held-out text of one domain reaches it with "
        f"{passing.mean():.1f} of {domains} domains on average."
    ]
