"""Clusters that stand for domains: a projection, a mixture, and the domains that own each cluster.

docs/explanation/methods.md#clustering describes the method. A cluster is owned by the domain with most training units
in it. A domain that is the majority of no cluster also owns the non-empty cluster with most of its units; such a
cluster then counts for two domains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from registry.progress import Steps
from registry.selectors.contract import Float64
from registry.selectors.drawing import domain_indices
from registry.selectors.gaussian_mixture import FittedMixture, Mixture, fit_mixture
from registry.selectors.mahalanobis import mahalanobis, whitening
from registry.selectors.projection import FittedProjection, Projection, fit_projection
from registry.spec import GmmSpec

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clusters:
    """Clusters of embeddings and the domains they stand for.

    `table` (clusters, domains) counts the training units; `means` (domains, m) and `whiten` (m, m) give distances.
    """

    projection: Projection
    mixture: Mixture
    table: Int64
    means: Float64
    whiten: Float64

    @property
    def majority(self) -> list[int | None]:
        """The domain of each cluster, None for a cluster without training units. Ties go to the earlier domain."""
        return [int(row.argmax()) if row.any() else None for row in self.table]

    @property
    def owners(self) -> list[list[int]]:
        """The domains a unit in each cluster counts for, the majority first."""
        majority = self.majority
        owners: list[list[int]] = [[] if domain is None else [domain] for domain in majority]
        for domain in sorted(set(range(self.table.shape[1])) - {d for d in majority if d is not None}):
            owners[int(self.table[:, domain].argmax())].append(domain)
        return owners

    @property
    def purity(self) -> float:
        """Share of the training units that lie in a cluster of their own domain's majority."""
        return float(self.table.max(axis=1).sum() / self.table.sum())

    def assign(self, points: Float64, *, usable: npt.NDArray[np.bool_] | None = None) -> tuple[Int64, Float64]:
        """The cluster of each of `points` (n, m) and its posterior, among the `usable` clusters.

        By default these are the non-empty clusters: one without training units stands for no domain.
        """
        allowed = self.table.sum(axis=1) > 0 if usable is None else usable
        joint = np.where(allowed[None, :], self.mixture.log_joint(points), -np.inf)
        posterior = np.exp(joint.max(axis=1) - logsumexp(joint, axis=1))
        return joint.argmax(axis=1).astype(np.int64), posterior

    def distances(self, points: Float64) -> Float64:
        """Mahalanobis distances (n, domains) of `points` (n, m) to the domains' means."""
        return mahalanobis(points, self.means, self.whiten)


@dataclass(frozen=True)
class ClusterFit:
    """Clusters and how their fit went."""

    clusters: Clusters
    projected: FittedProjection
    mixed: FittedMixture


@dataclass(frozen=True)
class Proof:
    """Figures on held-out units: the share assigned right, the mean largest posterior, and sorted distances.

    A distance is that of a unit to its own domain's mean.
    """

    accuracy: float
    posterior: float
    distances: Float64


def fit_clusters(domain_vectors: Sequence[Float64], spec: GmmSpec, *, drop_first: bool, steps: Steps) -> ClusterFit:
    """Fit on the domains' vectors, each (n_i, d); `spec` is resolved. Raises InvalidParameter."""
    vectors, domain = np.concatenate(domain_vectors), domain_indices(domain_vectors)
    assert spec.dimensions is not None
    assert spec.covariance is not None
    projected = fit_projection(vectors, dimensions=spec.dimensions, drop_first=drop_first)
    points = projected.projection(vectors)
    k = len(domain_vectors)
    mixed = fit_mixture(points, k=k, covariance=spec.covariance, max_iter=spec.max_iter, seed=spec.seed, steps=steps)
    table = np.zeros((k, k), dtype=np.int64)
    np.add.at(table, (mixed.mixture.log_joint(points).argmax(axis=1), domain), 1)
    means = np.stack([points[domain == d].mean(axis=0) for d in range(k)])
    clusters = Clusters(
        projection=projected.projection,
        mixture=mixed.mixture,
        table=table,
        means=means,
        whiten=whitening(points - means[domain]),
    )
    return ClusterFit(clusters=clusters, projected=projected, mixed=mixed)


def prove(clusters: Clusters, domain_vectors: Sequence[Float64]) -> Proof:
    """Evaluate `clusters` on held-out vectors of the same domains, each (n_i, d)."""
    points, domain = clusters.projection(np.concatenate(domain_vectors)), domain_indices(domain_vectors)
    cluster, posterior = clusters.assign(points)
    majority = np.array([-1 if owner is None else owner for owner in clusters.majority])
    distances = clusters.distances(points)[np.arange(len(points)), domain]
    return Proof(
        accuracy=float((majority[cluster] == domain).mean()),
        posterior=float(posterior.mean()),
        distances=np.sort(distances),
    )
