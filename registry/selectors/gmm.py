"""`gmm`: clusters over mean-pooled base embeddings (docs/explanation/methods.md#clustering).

The sample's units are assigned to clusters, clusters stand for domains, and domains with at least `min_share` of the
units are taken, by count. In the paper's mode (full covariance, component 0 dropped) covariances are nearly singular on
a hundred passages a domain, which held-out accuracy shows and training purity does not. Which makes the better soups is
a question of their held-out loss (docs/explanation/selection.md#gmm-clusters-of-passages).
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
from registry.selectors.drawing import MIN_UNITS, Draw, draw_units, proof_name
from registry.selectors.gaussian_mixture import Mixture, precision_shape
from registry.selectors.novelty import NOVEL, novelty, strange_sample
from registry.selectors.projection import Projection
from registry.selectors.ranking import Candidate, Evidence, Member, Ranked, Ranking, split_excluded
from registry.selectors.stability import COMPETITORS, UnitScores
from registry.spec import GmmSpec, SelectOptions

Zero = Literal["keep", "drop"]

MIN_SHARE = 0.10
"""Least share of a sample's units where a request names none (AdapterSoup, section 2)."""
GAP = 0.15
"""Held-out accuracy this far below training purity, or below the mean posterior, is worth a warning."""


class GmmSelector(Selector[GmmSpec]):
    """Gaussian mixture over PCA coordinates; learned: `members_`, `clusters_`, `own_distances_`, `report_`."""

    kind: ClassVar[str] = "gmm"

    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Learn clusters from 100 units a domain; the seed is the spec's, the order of `domains` does not matter.

        Raises InvalidParameter for an empty pool, too few or unusable vectors; whatever `progress` raises ends it.
        """
        ordered = ordered_domains(domains, min_units=MIN_UNITS)
        spec = self.spec.resolved()
        drawn = draw_units(ordered, seed=spec.seed)
        asked = ("keep", "drop") if spec.component_zero == "auto" else (spec.component_zero,)
        steps = Steps(progress, len(asked) + drawn.cross_fit)
        tried = _try_all(cast(tuple[Zero, ...], asked), drawn, spec, steps)
        zero = max(tried, key=lambda option: tried[option][1].accuracy)  # a tie keeps component 0
        fitted, proof = tried[zero]
        if drawn.cross_fit:
            fitted = fit_clusters(drawn.fitted, spec, drop_first=zero == "drop", steps=steps)
            steps.step("clusters fitted on all units")
        self.members_: tuple[Member, ...] = tuple(domain.member for domain in ordered)
        self.clusters_: Clusters = fitted.clusters
        self.own_distances_: Float64 = proof.distances
        self.report_: dict[str, Any] = _report(self.members_, spec, drawn, fitted, proof) | {
            "component_zero": {
                "asked": spec.component_zero,
                "chosen": zero,
                "held_out_accuracy": {option: tried[option][1].accuracy for option in tried},
            }
        }
        return self

    def rank(
        self, vectors: Floats, *, options: SelectOptions = SelectOptions(), exclude: Mapping[str, str] = {}
    ) -> Ranking:
        """Domains by their share of the sample's units; the units of excluded domains go to the next best cluster.

        Raises InvalidSample where the vectors are not this selector's encoder's.
        """
        clusters = self.clusters_
        points = clusters.projection(check_sample(vectors, clusters.projection.mean.shape[0]))
        kept, out = split_excluded(self.members_, exclude)
        warnings = list(self.report_["warnings"])
        if options.threshold is not None:
            warnings.append("'threshold' is an option of cosine selectors; gmm goes by 'min_share'.")
        cluster = self._assign(points, kept) if kept else np.empty(0, dtype=np.int64)
        per_cluster = np.bincount(cluster, minlength=len(clusters.table)).astype(np.int64)
        strange = novelty(clusters.distances(points)[:, kept], self.own_distances_) if kept else None
        if strange is not None and strange >= NOVEL:
            warnings.append(strange_sample(strange))
        ranked = self._rank(per_cluster, kept, len(points), options)
        share = _least(options)
        least = f"{100 * share:g} %"
        return Ranking(
            ranked=ranked,
            excluded=out,
            options=options,
            none_passes=f"No domain has {least} of the sample's {len(points)} units.",
            failing=f"Below {least} of the sample's units.",
            fails=partial(_fails, units=len(points), least=least),
            units=self._by_unit(cluster, ranked, share) if kept else None,
            evidence=Evidence(
                units=len(points),
                counts={str(cluster): int(count) for cluster, count in enumerate(per_cluster) if count},
                thresholds={"min_share": share},
                novelty=strange,
                warnings=tuple(warnings),
            ),
        )

    def _assign(self, points: Float64, kept: Sequence[int]) -> Int64:
        """The cluster of every unit (n,), among the clusters that count for a domain that is `kept`."""
        usable = np.array([any(domain in kept for domain in owned) for owned in self.clusters_.owners])
        cluster, _ = self.clusters_.assign(points, usable=usable)
        return cluster

    def _by_unit(self, cluster: Int64, ranked: Sequence[Candidate], least: float) -> UnitScores:
        """For whom each unit counts, by its cluster; equal counts go as `_rank` has them."""
        place = {member.digest: at for at, member in enumerate(self.members_)}
        order = np.array([place[one.member.digest] for one in ranked[:COMPETITORS]], dtype=np.int64)
        owners, table = self.clusters_.owners, self.clusters_.table
        counts_for = np.array([[domain in owned for domain in order] for owned in owners], dtype=np.float64)
        part = counts_for * table[:, order] / np.maximum(table.sum(axis=1, keepdims=True), 1)
        never_without_a_unit = max(least, 0.5 / len(cluster))
        return UnitScores(counts_for[cluster], least=never_without_a_unit, order=order, ties=part[cluster])

    def _rank(self, per_cluster: Int64, kept: Sequence[int], units: int, options: SelectOptions) -> Ranked:
        """Candidates by count; ties to the domain that makes up more of its clusters, then by label."""
        table, owners, least = self.clusters_.table, self.clusters_.owners, _least(options)
        rows = []
        for domain in kept:
            own = [cluster for cluster, owned in enumerate(owners) if domain in owned]
            count = int(per_cluster[own].sum())
            weighted = float((per_cluster[own] * table[own, domain] / table[own].sum(axis=1)).sum())
            rows.append((-count, -weighted, domain, count))
        ordered = sorted(rows)
        counts = np.array([count for *_, count in ordered], dtype=np.float64)
        passes = (counts > 0) & (counts / units >= least)
        order = np.array([domain for _, _, domain, _ in ordered], dtype=np.int64)
        return Ranked(self.members_, order, counts / units, passes)

    def _arrays(self) -> Arrays:
        """A scikit-learn mixture can be rebuilt from them (weights, means, precisions)."""
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
            table=self._stored(arrays, "table", np.int64, (k, k)),
            means=self._floats(arrays, "domain_means", k, m),
            whiten=self._floats(arrays, "whiten", m, m),
        )


def _try_all(asked: Sequence[Zero], drawn: Draw, spec: GmmSpec, steps: Steps) -> dict[Zero, tuple[ClusterFit, Proof]]:
    """Fit and prove with component 0 kept or dropped; raises InvalidParameter if nothing `asked` can be done."""
    tried: dict[Zero, tuple[ClusterFit, Proof]] = {}
    for zero in asked:
        try:
            fitted = fit_clusters(drawn.proof_fit, spec, drop_first=zero == "drop", steps=steps)
        except InvalidParameter:
            if not tried:
                raise
            steps.step("component 0 is all there is")  # of two ways the first one works: nothing to choose
            continue
        tried[zero] = fitted, prove(fitted.clusters, drawn.proof_test)
        steps.step(f"component 0 {zero}: held-out accuracy {tried[zero][1].accuracy:.2f}")
    return tried


def _report(members: Sequence[Member], spec: GmmSpec, drawn: Draw, fitted: ClusterFit, proof: Proof) -> dict[str, Any]:
    clusters, k = fitted.clusters, len(members)
    majority, owners = clusters.majority, clusters.owners
    return {
        "domains": k,
        "covariance": spec.covariance,
        "dimensions": len(clusters.projection.components),
        "explained_variance": fitted.projected.explained,
        "iterations": fitted.mixed.iterations,
        "converged": fitted.mixed.converged,
        "units_fitted": sum(map(len, drawn.fitted)),
        "units_held_out": sum(map(len, drawn.proof_test)),
        "held_out_by": proof_name(drawn.cross_fit),
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
    """What whoever reads a selection of this selector has to know."""
    purity, found = fitted.clusters.purity, len(fitted.clusters.projection.components)
    warnings = list(fitted.mixed.warnings)
    if spec.dimensions is not None and found < spec.dimensions:
        warnings.append(f"The embeddings carry {found} dimensions of the {spec.dimensions} asked for.")
    if purity - proof.accuracy > GAP:
        warnings.append(
            f"Held-out accuracy is {proof.accuracy:.2f} where training purity is {purity:.2f}: the clusters do not "
            f"carry over to other text ({spec.covariance} covariance, {found} dimensions); tied covariance or fewer "
            "dimensions usually do."
        )
    if proof.posterior - proof.accuracy > GAP:
        warnings.append(
            f"Posteriors are saturated: {proof.posterior:.2f} on average on held-out text, of which "
            f"{proof.accuracy:.2f} is assigned right."
        )
    return warnings


def _fails(score: float, *, units: int, least: str) -> str:
    """Why a domain with this share of the sample's units is not taken."""
    count = round(score * units)
    if count == 0:
        return f"None of the sample's {units} units is in its cluster."
    return f"{count} of the sample's {units} units, below {least}."


def _least(options: SelectOptions) -> float:
    """The least share of the sample's units that a domain has to have."""
    return MIN_SHARE if options.min_share is None else options.min_share
