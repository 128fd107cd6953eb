"""How strange a sample is to a pool: a percentile among what the pool's own domains look like on other text.

One unit's distance is to the nearest domain; a held-out unit's to its own. The sample's is the median of its units,
so a sample from a domain of the pool is expected near 50 or below, and one like nothing in it near 100.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from registry.selectors.contract import Float64

NOVEL = 95.0
"""From this percentile on a sample is said to be strange."""


def strange_sample(percent: float) -> str:
    """What whoever reads the shares of a strange sample has to know."""
    return (
        f"The sample is farther from its nearest domains than {percent:.0f} % of their own text is from them: "
        "read its shares as the least unlike, not as like."
    )


def percentile(distance: float, own: Float64) -> float:
    """Percent of the `own` distances (sorted, not empty) below `distance`, ties by half."""
    below = int(np.searchsorted(own, distance, side="left"))
    upto = int(np.searchsorted(own, distance, side="right"))
    return 100.0 * (below + upto) / 2 / len(own)


def novelty(distances: Float64, own: Float64) -> float:
    """Percentile of the median of the least of `distances` (units, domains) of every unit among `own`."""
    return percentile(float(np.median(distances.min(axis=1))), own)


def whitening(residuals: Float64) -> Float64:
    """`whitening_of` residuals (n, d), taken against the means of their own domains and pooled."""
    fourth = float(np.square(np.square(residuals).sum(axis=1)).sum())
    return whitening_of(len(residuals), residuals.T @ residuals, fourth)


def whitening_of(count: int, scatter: Float64, fourth: float) -> Float64:
    """W (d, d) such that ||x W|| is the Mahalanobis norm under the covariance of `count` residuals r.

    The covariance is shrunk after Ledoit and Wolf (2004), so that it can be inverted also where units are few. It
    needs sums over residuals only: `scatter` (d, d) of r r', and `fourth` of ||r||^4.
    """
    covariance = _ledoit_wolf(count, scatter, fourth)
    # All domains without spread leave nothing to scale by: any positive floor makes their distances huge, rightly.
    floor = max(float(np.trace(covariance)) / len(covariance), 1e-12) * 1e-6
    lower = np.linalg.cholesky(covariance + floor * np.eye(len(covariance)))
    inverse = solve_triangular(lower, np.eye(len(lower)), lower=True)
    return np.ascontiguousarray(inverse.T)


def _ledoit_wolf(count: int, scatter: Float64, fourth: float) -> Float64:
    """The shrunk covariance, as scikit-learn's `ledoit_wolf` has it of the residuals themselves."""
    size = len(scatter)
    covariance = scatter / count
    scale = float(np.trace(covariance)) / size
    squared = float(np.square(covariance).sum())
    noise = (fourth / count - squared) / (size * count)
    distance = (squared - size * scale**2) / size
    noise = min(noise, distance)
    shrinkage = 0.0 if noise <= 0 else noise / distance
    return np.asarray((1 - shrinkage) * covariance + shrinkage * scale * np.eye(size))


def mahalanobis(points: Float64, means: Float64, whiten: Float64) -> Float64:
    """Distances (n, k) of `points` (n, d) to `means` (k, d)."""
    return euclidean(points @ whiten, means @ whiten)


def euclidean(points: Float64, centres: Float64) -> Float64:
    """Distances (n, k) of `points` (n, d) to `centres` (k, d)."""
    squared = (-2.0 * points) @ centres.T  # in place: of a large pool each array more takes as long as the product
    squared += np.square(points).sum(axis=1)[:, None]
    squared += np.square(centres).sum(axis=1)[None, :]
    np.maximum(squared, 0.0, out=squared)
    return np.asarray(np.sqrt(squared, out=squared))
