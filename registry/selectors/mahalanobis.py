"""Mahalanobis distances of units to domains, under the covariance of the units around their own domain's mean."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from registry.selectors.contract import Float64


def whitening(residuals: Float64) -> Float64:
    """`whitening_of` the residuals (n, d) of all domains, each taken against the mean of its own domain."""
    fourth = float(np.square(np.square(residuals).sum(axis=1)).sum())
    return whitening_of(len(residuals), residuals.T @ residuals, fourth)


def whitening_of(count: int, scatter: Float64, fourth: float) -> Float64:
    """W (d, d) such that ||x W|| is the Mahalanobis norm under the covariance of `count` residuals r.

    The covariance is shrunk (Ledoit and Wolf, 2004), so that it is invertible even where units are few. It is computed
    from sums over the residuals: `scatter` (d, d) of r r', and `fourth` of ||r||^4.
    """
    covariance = _ledoit_wolf(count, scatter, fourth)
    # Where no domain has any spread the covariance is zero: any positive floor makes distances huge, as they should be.
    floor = max(float(np.trace(covariance)) / len(covariance), 1e-12) * 1e-6
    lower = np.linalg.cholesky(covariance + floor * np.eye(len(covariance)))
    inverse = solve_triangular(lower, np.eye(len(lower)), lower=True)
    return np.ascontiguousarray(inverse.T)


def _ledoit_wolf(count: int, scatter: Float64, fourth: float) -> Float64:
    """The shrunk covariance, equal to that of scikit-learn's `ledoit_wolf` on the residuals themselves."""
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
    squared = (-2.0 * points) @ centres.T  # in place: for a large pool each further array costs as much as the product
    squared += np.square(points).sum(axis=1)[:, None]
    squared += np.square(centres).sum(axis=1)[None, :]
    np.maximum(squared, 0.0, out=squared)
    return np.asarray(np.sqrt(squared, out=squared))
