"""PCA as plain arrays, fitted by scikit-learn on the training domains only (docs/explanation/methods.md#clustering)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from registry.errors import InvalidParameter
from registry.selectors.contract import Float64

RANK_TOLERANCE = 1e-10
"""A component with less than this share of the first one's variance is noise of the arithmetic."""


@dataclass(frozen=True)
class Projection:
    """`mean` (d,) and the kept `components` (m, d), by falling variance."""

    mean: Float64
    components: Float64

    def __call__(self, vectors: Float64) -> Float64:
        """Coordinates (n, m) of `vectors` (n, d)."""
        return (vectors - self.mean) @ self.components.T


@dataclass(frozen=True)
class FittedProjection:
    """A projection, the share of the variance it keeps, and the dimensions there would have been."""

    projection: Projection
    explained: float
    available: int


def fit_projection(vectors: Float64, *, dimensions: int, drop_first: bool) -> FittedProjection:
    """PCA of `vectors` (n, d) to `dimensions`, or as many as they have; with `drop_first`, without component 0.

    Raises InvalidParameter where they do not differ, or in one direction only and that is dropped.
    """
    from sklearn.decomposition import PCA

    mean = vectors.mean(axis=0)
    if not np.abs(vectors - mean).max() > 1e-12 * max(1.0, np.abs(mean).max()):
        raise InvalidParameter("All embeddings of the pool are the same: there is nothing to cluster.", param="pool")
    pca = PCA(n_components=min(vectors.shape), svd_solver="full").fit(vectors)  # type: ignore[no-untyped-call]
    variance = pca.explained_variance_
    first = int(drop_first)
    available = int((variance > variance[0] * RANK_TOLERANCE).sum()) - first
    if available < 1:
        raise InvalidParameter(
            "The embeddings differ in one direction only, and component_zero='drop' takes it away.",
            param="component_zero",
        )
    last = first + min(dimensions, available)
    projection = Projection(
        mean=np.ascontiguousarray(pca.mean_), components=np.ascontiguousarray(pca.components_[first:last])
    )
    explained = float(pca.explained_variance_ratio_[first:last].sum())
    return FittedProjection(projection=projection, explained=explained, available=available)
