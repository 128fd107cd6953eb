"""PCA as plain arrays, fitted on the training units only (docs/explanation/methods.md#clustering).

`fit_projection` uses scikit-learn on vectors in memory, `Spread` accumulates sums over vectors that are read in turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from sklearn.decomposition import PCA

from registry.errors import InvalidParameter
from registry.selectors.contract import Float64

RANK_TOLERANCE = 1e-10
"""A component with less than this share of the first one's variance is numerical noise."""


@dataclass(frozen=True)
class Projection:
    """`mean` (d,) and the first `components` (m, d), by descending variance."""

    mean: Float64
    components: Float64

    def __call__(self, vectors: Float64) -> Float64:
        """Coordinates (n, m) of `vectors` (n, d)."""
        return (vectors - self.mean) @ self.components.T


@dataclass(frozen=True)
class FittedProjection:
    """A projection and the share of the variance it explains."""

    projection: Projection
    explained: float


@dataclass
class Spread:
    """Sums over vectors (n, d) that are added in batches, from which principal components are computed."""

    origin: Float64
    """Subtracted from vectors (d,) before summing, for precision: states of a language model share a large mean."""
    count: int = 0
    total: Float64 = field(init=False)
    squares: Float64 = field(init=False)

    def __post_init__(self) -> None:
        dimensions = len(self.origin)
        self.total, self.squares = np.zeros(dimensions), np.zeros((dimensions, dimensions))

    def add(self, vectors: Float64) -> None:
        """Add vectors (n, d)."""
        centred = vectors - self.origin
        self.count += len(vectors)
        self.total += centred.sum(axis=0)
        self.squares += centred.T @ centred

    def __add__(self, spread: Spread) -> Spread:
        """The sums over the vectors of both, which share an origin."""
        combined = Spread(self.origin, self.count + spread.count)
        combined.total, combined.squares = self.total + spread.total, self.squares + spread.squares
        return combined

    def projection(self, *, dimensions: int) -> FittedProjection:
        """PCA to at most `dimensions`; raises InvalidParameter where the vectors do not differ."""
        shift = self.total / self.count
        mean = self.origin + shift
        variance, vectors = np.linalg.eigh(self.squares / self.count - np.outer(shift, shift))
        variance, components = variance[::-1], vectors[:, ::-1].T
        if not variance[0] > (1e-12 * max(1.0, float(np.abs(mean).max()))) ** 2:
            raise _equal_embeddings_error()
        available = int((variance > variance[0] * RANK_TOLERANCE).sum())
        first = components[: min(dimensions, available)]
        signs = np.sign(first[np.arange(len(first)), np.abs(first).argmax(axis=1)])
        first = np.ascontiguousarray(first * signs[:, None])
        projection = Projection(mean=np.ascontiguousarray(mean), components=first)
        explained = float(variance[: len(first)].sum() / variance.clip(min=0).sum())
        return FittedProjection(projection=projection, explained=explained)


def _equal_embeddings_error() -> InvalidParameter:
    return InvalidParameter("All embeddings of the pool are the same: there is nothing to cluster.", param="pool")


def fit_projection(vectors: Float64, *, dimensions: int, drop_first: bool) -> FittedProjection:
    """PCA of `vectors` (n, d) to `dimensions`, or as many as they have; with `drop_first`, without component 0.

    Raises InvalidParameter where they do not differ, or in one direction only and that is dropped.
    """
    mean = vectors.mean(axis=0)
    if not np.abs(vectors - mean).max() > 1e-12 * max(1.0, np.abs(mean).max()):
        raise _equal_embeddings_error()
    pca = PCA(n_components=min(vectors.shape), svd_solver="full").fit(vectors)
    variance = pca.explained_variance_
    first = int(drop_first)
    available = int((variance > variance[0] * RANK_TOLERANCE).sum()) - first
    if available < 1:
        raise InvalidParameter(
            "The embeddings differ in one direction only, and component_zero='drop' removes it.",
            param="component_zero",
        )
    last = first + min(dimensions, available)
    projection = Projection(
        mean=np.ascontiguousarray(pca.mean_), components=np.ascontiguousarray(pca.components_[first:last])
    )
    explained = float(pca.explained_variance_ratio_[first:last].sum())
    return FittedProjection(projection=projection, explained=explained)
