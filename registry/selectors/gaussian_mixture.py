"""A Gaussian mixture as plain arrays: fitted by scikit-learn, evaluated here, stored without pickle.

Fitting calls scikit-learn's public interface in short warm starts, which is the same EM, so that progress is reported
and a fit can be cancelled in between. Evaluation repeats scikit-learn's formulas on the stored arrays (tests compare
them), so that a stored selector does not depend on the version that fitted it.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from registry.errors import InvalidParameter
from registry.progress import Steps
from registry.selectors.contract import Float64

Covariance = Literal["full", "tied", "diag", "spherical"]
CHUNK = 10
"""EM iterations between two calls of the progress function, which may cancel."""


@dataclass(frozen=True)
class Mixture:
    """k Gaussians in d dimensions: `weights` (k,), `means` (k, d) and `precisions_cholesky`.

    The last is (k, d, d) for full, (d, d) for tied, (k, d) for diag and (k,) for spherical covariance.
    """

    covariance: Covariance
    weights: Float64
    means: Float64
    precisions_cholesky: Float64

    def log_joint(self, points: Float64) -> Float64:
        """log(weight x density) (n, k) of `points` (n, d)."""
        dimensions = self.means.shape[1]
        squared = np.stack(
            [np.square(self._white(points - mean, k)).sum(axis=1) for k, mean in enumerate(self.means)], axis=1
        )
        normal = -0.5 * (dimensions * math.log(2 * math.pi) + squared)
        return np.asarray(normal + self._log_determinant() + np.log(self.weights))

    def _white(self, centred: Float64, k: int) -> Float64:
        precision = self.precisions_cholesky
        if self.covariance == "tied":
            return np.asarray(centred @ precision)
        if self.covariance == "full":
            return np.asarray(centred @ precision[k])
        return np.asarray(centred * precision[k])

    def _log_determinant(self) -> Float64:
        """Half the log determinant (k,) of each component's precision."""
        precision, (k, dimensions) = self.precisions_cholesky, self.means.shape
        if self.covariance == "tied":
            return np.full(k, np.log(np.diagonal(precision)).sum())
        if self.covariance == "full":
            return np.asarray(np.log(np.diagonal(precision, axis1=1, axis2=2)).sum(axis=1))
        if self.covariance == "diag":
            return np.asarray(np.log(precision).sum(axis=1))
        return np.asarray(dimensions * np.log(precision))


@dataclass(frozen=True)
class FittedMixture:
    """A mixture and how its fit went."""

    mixture: Mixture
    iterations: int
    converged: bool
    warnings: tuple[str, ...]


def precision_shape(covariance: Covariance, k: int, dimensions: int) -> tuple[int, ...]:
    """Shape of `Mixture.precisions_cholesky`."""
    return {
        "full": (k, dimensions, dimensions),
        "tied": (dimensions, dimensions),
        "diag": (k, dimensions),
        "spherical": (k,),
    }[covariance]


def fit_mixture(
    points: Float64, *, k: int, covariance: Covariance, max_iter: int, seed: int, steps: Steps
) -> FittedMixture:
    """Fit by EM from a k-means start on `points` (n, d); raises InvalidParameter where the fit is not possible."""
    estimator: Any = GaussianMixture(
        n_components=k, covariance_type=covariance, init_params="kmeans", random_state=seed, warm_start=True
    )
    iterations = 0
    messages: list[str] = []
    while iterations < max_iter and not getattr(estimator, "converged_", False):
        steps.note(f"fitting {k} clusters, iteration {iterations} of at most {max_iter}")
        estimator.set_params(max_iter=min(CHUNK, max_iter - iterations))
        messages += _fit_quietly(estimator, points)
        iterations += estimator.n_iter_
    if not estimator.converged_:
        messages.append(f"The clusters had not settled after {max_iter} iterations; raise max_iter to go on.")
    mixture = Mixture(
        covariance=covariance,
        weights=np.ascontiguousarray(estimator.weights_),
        means=np.ascontiguousarray(estimator.means_),
        precisions_cholesky=np.ascontiguousarray(estimator.precisions_cholesky_),
    )
    return FittedMixture(
        mixture=mixture,
        iterations=iterations,
        converged=bool(estimator.converged_),
        warnings=tuple(dict.fromkeys(messages)),
    )


def _fit_quietly(estimator: Any, points: Float64) -> list[str]:
    """Run one warm start and return its convergence warnings; all other warnings are issued again."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        try:
            estimator.fit(points)
        except ValueError as error:
            raise InvalidParameter(
                f"{estimator.n_components} clusters with {estimator.covariance_type!r} covariance cannot be fitted to "
                f"{points.shape[0]} embeddings in {points.shape[1]} dimensions: take fewer dimensions or 'tied'.",
                param="selector",
            ) from error
    messages = []
    for warning in caught:
        if not issubclass(warning.category, ConvergenceWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        elif "did not converge" not in str(warning.message):  # expected of every warm start but the last
            messages.append(str(warning.message))
    return messages
