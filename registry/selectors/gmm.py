"""`gmm`: clusters over mean-pooled base embeddings (docs/explanation/methods.md#clustering).

The sample's units are assigned to clusters, clusters stand for domains, and domains with at least `min_share` of the
units are chosen, by count. In the paper's mode (full covariance, component 0 dropped) covariances are nearly singular
on a hundred passages a domain, which shows in held-out accuracy but not in training purity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from registry.errors import Internal, InvalidParameter
from registry.progress import Progress, Steps
from registry.selectors.clusters import ClusterFit, Clusters, Int64, Proof, fit_clusters, prove
from registry.selectors.contract import Arrays, Domain, Float64, Floats, Selector, check_sample, ordered_domains
from registry.selectors.drawing import MIN_UNITS, DomainDraw, draw_domain, has_few_units, proof_name
from registry.selectors.gaussian_mixture import Mixture, precision_shape
from registry.selectors.novelty import NOVEL, novelty, novelty_warning
from registry.selectors.projection import Projection
from registry.selectors.ranking import Evidence, Member, RankedCandidates, Ranking, split_excluded
from registry.selectors.stability import COMPETITORS, UnitScores
from registry.spec import GmmSpec, SelectOptions

ComponentZero = Literal["keep", "drop"]

MIN_SHARE = 0.10
"""The least share of a sample's units by default (AdapterSoup, section 2)."""
GAP = 0.15
"""A warning is given where held-out accuracy is this far below training purity or the mean posterior."""


class GmmSelector(Selector[GmmSpec]):
    """Gaussian mixture over PCA coordinates; learned: `members_`, `clusters_`, `own_distances_`, `report_`."""

    kind: ClassVar[str] = "gmm"

    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Fit clusters on 100 units a domain, drawn with the spec's seed.

        Raises InvalidParameter for an empty pool, too few or unusable vectors, and what `progress` raises.
        """
        ordered = ordered_domains(domains, min_units=MIN_UNITS)
        spec = self.spec.resolved()
        cross_fit = any(map(has_few_units, ordered))
        draws = [draw_domain(domain, seed=spec.seed, cross_fit=cross_fit) for domain in ordered]
        options = ("keep", "drop") if spec.component_zero == "auto" else (spec.component_zero,)
        steps = Steps(progress, len(options) + cross_fit)
        trials = _try_options(cast(tuple[ComponentZero, ...], options), draws, spec, steps)
        best = max(trials, key=lambda option: trials[option][1].accuracy)  # a tie keeps component 0
        fitted, proof = trials[best]
        if cross_fit:
            fitted = fit_clusters([draw.fit for draw in draws], spec, drop_first=best == "drop", steps=steps)
            steps.step("clusters fitted on all units")
        self.members_: tuple[Member, ...] = tuple(domain.member for domain in ordered)
        self.clusters_: Clusters = fitted.clusters
        self.own_distances_: Float64 = proof.distances
        self.report_: dict[str, Any] = _report(self.members_, spec, draws, cross_fit, fitted, proof) | {
            "component_zero": {
                "asked": spec.component_zero,
                "chosen": best,
                "held_out_accuracy": {option: trials[option][1].accuracy for option in trials},
            }
        }
        return self

    def rank(
        self, vectors: Floats, *, options: SelectOptions = SelectOptions(), exclude: Mapping[str, str] = {}
    ) -> Ranking:
        """Rank domains by their share of the sample's units; units of excluded domains go to the next best cluster.

        Raises InvalidSample as `check_sample` does.
        """
        clusters = self.clusters_
        points = clusters.projection(check_sample(vectors, clusters.projection.mean.shape[0]))
        remaining, excluded = split_excluded(self.members_, exclude)
        warnings = list(self.report_["warnings"])
        if options.threshold is not None:
            warnings.append("'threshold' is an option of cosine selectors; gmm goes by 'min_share'.")
        cluster = self._assign(points, remaining) if remaining.size else np.empty(0, dtype=np.int64)
        per_cluster = np.bincount(cluster, minlength=len(clusters.table)).astype(np.int64)
        percent = novelty(clusters.distances(points)[:, remaining], self.own_distances_) if remaining.size else None
        if percent is not None and percent >= NOVEL:
            warnings.append(novelty_warning(percent))
        min_share = MIN_SHARE if options.min_share is None else options.min_share
        ranked = self._rank(per_cluster, remaining, units=len(points), min_share=min_share)
        least = f"{100 * min_share:g} %"
        return Ranking(
            ranked=ranked,
            excluded=excluded,
            options=options,
            abstention=f"No domain has {least} of the sample's {len(points)} units.",
            failure=f"Below {least} of the sample's units.",
            explain_failure=partial(_explain_failure, units=len(points), least=least),
            units=self._unit_scores(cluster, ranked, min_share) if remaining.size else None,
            evidence=Evidence(
                units=len(points),
                counts={str(cluster): int(count) for cluster, count in enumerate(per_cluster) if count},
                thresholds={"min_share": min_share},
                novelty=percent,
                warnings=tuple(warnings),
            ),
        )

    def _assign(self, points: Float64, remaining: Int64) -> Int64:
        """The cluster of each unit (n,), among the clusters that count for one of the `remaining` domains."""
        usable = np.array([any(domain in remaining for domain in owners) for owners in self.clusters_.owners])
        cluster, _ = self.clusters_.assign(points, usable=usable)
        return cluster

    def _unit_scores(self, cluster: Int64, ranked: RankedCandidates, min_share: float) -> UnitScores:
        """Scores by unit: 1 for the domains of its cluster. Ties are broken as `_rank` does."""
        order = ranked.order[:COMPETITORS]
        table = self.clusters_.table
        counts_for = np.array(
            [[domain in owners for domain in order] for owners in self.clusters_.owners], dtype=np.float64
        )
        fractions = counts_for * table[:, order] / np.maximum(table.sum(axis=1, keepdims=True), 1)
        at_least_one_unit = max(min_share, 0.5 / len(cluster))
        return UnitScores(counts_for[cluster], least=at_least_one_unit, order=order, ties=fractions[cluster])

    def _rank(self, per_cluster: Int64, remaining: Int64, *, units: int, min_share: float) -> RankedCandidates:
        """Candidates by count; ties go to the domain that makes up more of its clusters, then by label."""
        table, owners = self.clusters_.table, self.clusters_.owners
        rows = []
        for domain in remaining:
            owned = [cluster for cluster, domains in enumerate(owners) if domain in domains]
            count = int(per_cluster[owned].sum())
            weighted = float((per_cluster[owned] * table[owned, domain] / table[owned].sum(axis=1)).sum())
            rows.append((-count, -weighted, domain, count))
        rows.sort()
        counts = np.array([count for *_, count in rows], dtype=np.float64)
        passes = (counts > 0) & (counts / units >= min_share)
        order = np.array([domain for _, _, domain, _ in rows], dtype=np.int64)
        return RankedCandidates(self.members_, order, counts / units, passes)

    def _arrays(self) -> Arrays:
        clusters = self.clusters_
        return {
            "projection_mean": clusters.projection.mean,
            "projection_components": clusters.projection.components,
            "weights": clusters.mixture.weights,
            "means": clusters.mixture.means,
            "precisions_cholesky": clusters.mixture.precisions_cholesky,
            "table": clusters.table,
            "domain_means": clusters.means,
            "whiten": clusters.whiten,
            "own_distances": self.own_distances_,
        }

    def _restore(self, arrays: Arrays) -> None:
        covariance = self.spec.resolved().covariance
        components = arrays.get("projection_components")
        if components is None or components.ndim != 2 or covariance is None:
            raise Internal("Stored selector has no projection: fit it again.")
        (m, d), k = components.shape, len(self.members_)
        self.own_distances_ = self._floats(arrays, "own_distances", arrays.get("own_distances", np.empty(0)).size)
        self.clusters_ = Clusters(
            projection=Projection(
                mean=self._floats(arrays, "projection_mean", d),
                components=self._floats(arrays, "projection_components", m, d),
            ),
            mixture=Mixture(
                covariance=covariance,
                weights=self._floats(arrays, "weights", k),
                means=self._floats(arrays, "means", k, m),
                precisions_cholesky=self._floats(arrays, "precisions_cholesky", *precision_shape(covariance, k, m)),
            ),
            table=self._array(arrays, "table", np.int64, (k, k)),
            means=self._floats(arrays, "domain_means", k, m),
            whiten=self._floats(arrays, "whiten", m, m),
        )


def _try_options(
    options: Sequence[ComponentZero], draws: Sequence[DomainDraw], spec: GmmSpec, steps: Steps
) -> dict[ComponentZero, tuple[ClusterFit, Proof]]:
    """Fit and prove clusters with each of `options`; raises InvalidParameter where the first cannot be fitted."""
    trials: dict[ComponentZero, tuple[ClusterFit, Proof]] = {}
    for option in options:
        try:
            fitted = fit_clusters([draw.proof_fit for draw in draws], spec, drop_first=option == "drop", steps=steps)
        except InvalidParameter:
            if not trials:
                raise
            steps.step("component 0 is all there is")  # "keep" can be fitted, "drop" cannot
            continue
        trials[option] = fitted, prove(fitted.clusters, [draw.held_out for draw in draws])
        steps.step(f"component 0 {option}: held-out accuracy {trials[option][1].accuracy:.2f}")
    return trials


def _report(
    members: Sequence[Member],
    spec: GmmSpec,
    draws: Sequence[DomainDraw],
    cross_fit: bool,
    fitted: ClusterFit,
    proof: Proof,
) -> dict[str, Any]:
    clusters, k = fitted.clusters, len(members)
    majority, owners = clusters.majority, clusters.owners
    return {
        "domains": k,
        "covariance": spec.covariance,
        "dimensions": len(clusters.projection.components),
        "explained_variance": fitted.projected.explained,
        "iterations": fitted.mixed.iterations,
        "converged": fitted.mixed.converged,
        "units_fitted": sum(len(draw.fit) for draw in draws),
        "units_held_out": sum(len(draw.held_out) for draw in draws),
        "held_out_by": proof_name(cross_fit),
        "held_out_accuracy": proof.accuracy,
        "held_out_posterior": proof.posterior,
        "training_purity": clusters.purity,
        "majority_nowhere": [members[d].domain for d in range(k) if d not in majority],
        "clusters": [
            {"cluster": c, "domains": [members[d].domain for d in owners[c]], "units": int(clusters.table[c].sum())}
            for c in range(k)
        ],
        "warnings": _warnings(spec, fitted, proof),
    }


def _warnings(spec: GmmSpec, fitted: ClusterFit, proof: Proof) -> list[str]:
    """Warnings that each selection of this selector carries."""
    purity, dimensions = fitted.clusters.purity, len(fitted.clusters.projection.components)
    warnings = list(fitted.mixed.warnings)
    if spec.dimensions is not None and dimensions < spec.dimensions:
        warnings.append(f"The embeddings carry {dimensions} dimensions of the {spec.dimensions} asked for.")
    if purity - proof.accuracy > GAP:
        warnings.append(
            f"Held-out accuracy is {proof.accuracy:.2f} where training purity is {purity:.2f}: the clusters do not "
            f"carry over to other text ({spec.covariance} covariance, {dimensions} dimensions); tied covariance or "
            "fewer dimensions usually do."
        )
    if proof.posterior - proof.accuracy > GAP:
        warnings.append(
            f"Posteriors are saturated: {proof.posterior:.2f} on average on held-out text, of which "
            f"{proof.accuracy:.2f} is assigned right."
        )
    return warnings


def _explain_failure(score: float, *, units: int, least: str) -> str:
    """Why a domain with this share of the sample's units is not chosen."""
    count = round(score * units)
    if count == 0:
        return f"None of the sample's {units} units is in its cluster."
    return f"{count} of the sample's {units} units, below {least}."
