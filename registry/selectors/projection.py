"""PCA as plain arrays, on the training domains only (docs/explanation/methods.md#clustering).

`fit_projection` is scikit-learn's on vectors in memory, `Spread` sums over vectors that need not be there at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from sklearn.decomposition import PCA

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


@dataclass
class Spread:
    """Sums over vectors (n, d), taken in part by part, that principal components follow from."""

    origin: Float64
    """What vectors are taken from before they are summed: states of a language model share a large mean."""
    count: int = 0
    total: Float64 = field(init=False)
    squares: Float64 = field(init=False)

    def __post_init__(self) -> None:
        dimensions = len(self.origin)
        self.total, self.squares = np.zeros(dimensions), np.zeros((dimensions, dimensions))

    def add(self, vectors: Float64) -> None:
        """Take in more vectors (n, d)."""
        centred = vectors - self.origin
        self.count += len(vectors)
        self.total += centred.sum(axis=0)
        self.squares += centred.T @ centred

    def with_more(self, other: Spread) -> Spread:
        """The sums of both, which have one origin."""
        both = Spread(self.origin, self.count + other.count)
        both.total, both.squares = self.total + other.total, self.squares + other.squares
        return both

    def projection(self, *, dimensions: int) -> FittedProjection:
        """PCA to `dimensions`, or as many as there are; raises InvalidParameter where the vectors do not differ."""
        shift = self.total / self.count
        mean = self.origin + shift
        variance, vectors = np.linalg.eigh(self.squares / self.count - np.outer(shift, shift))
        variance, components = variance[::-1], vectors[:, ::-1].T
        if not variance[0] > (1e-12 * max(1.0, float(np.abs(mean).max()))) ** 2:
            raise _no_difference()
        available = int((variance > variance[0] * RANK_TOLERANCE).sum())
        kept = components[: min(dimensions, available)]
        signs = np.sign(kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)])
        projection = Projection(mean=np.ascontiguousarray(mean), components=np.ascontiguousarray(kept * signs[:, None]))
        explained = float(variance[: len(kept)].sum() / variance.clip(min=0).sum())
        return FittedProjection(projection=projection, explained=explained, available=available)


def _no_difference() -> InvalidParameter:
    return InvalidParameter("All embeddings of the pool are the same: there is nothing to cluster.", param="pool")


def fit_projection(vectors: Float64, *, dimensions: int, drop_first: bool) -> FittedProjection:
    """PCA of `vectors` (n, d) to `dimensions`, or as many as they have; with `drop_first`, without component 0.

    Raises InvalidParameter where they do not differ, or in one direction only and that is dropped.
    """
    mean = vectors.mean(axis=0)
    if not np.abs(vectors - mean).max() > 1e-12 * max(1.0, np.abs(mean).max()):
        raise _no_difference()
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
