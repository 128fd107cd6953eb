"""Exact mixtures: the weighted sum of the updates of adapters of one structure, to compare a soup with.

Made by a structure's entry in `STRUCTURES`; `mixing.report` adds ingredients while a mixing method reads them. In
double precision and through BLAS, since no byte of a soup depends on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from registry.adapters.loadable import Tensors

Factor = Callable[[str], float]
"""Site (`layers.3.ffn` of a bottleneck, of a LoRA a module's path) -> factor of an ingredient's update there."""


def constant_factor(value: float) -> Factor:
    """A factor that is `value` at every site."""
    return lambda _site: value


class Mixture(ABC):
    """The sum of adapters' updates, each times a factor; all configurations are of one structure."""

    def residuals(self, _config: Any, _tensors: Tensors) -> dict[str, float] | None:
        """The relative error of a soup at each site; None for structures that are not compared by site."""
        return None

    @abstractmethod
    def add(self, config: Any, tensors: Tensors, factor: Factor) -> None:
        """Add `factor` times an adapter's update."""

    @abstractmethod
    def residual(self, config: Any, tensors: Tensors) -> float | None:
        """The relative error of a soup of this configuration and these tensors; None where there is none."""


class Measured(Mixture):
    """A mixture that is compared with a soup at each site."""

    @abstractmethod
    def squares(self, config: Any, tensors: Tensors) -> dict[str, tuple[float, float]]:
        """Squared norms of the soup's difference from the exact mixture, and of the exact mixture, by site."""

    def residual(self, config: Any, tensors: Tensors) -> float | None:
        """The relative error of a soup; None where the ingredients cancel out."""
        squares = self.squares(config, tensors).values()
        return _relative(sum(difference for difference, _ in squares), sum(size for _, size in squares))

    def residuals(self, config: Any, tensors: Tensors) -> dict[str, float]:
        """The relative error of a soup at each site, without sites where the ingredients cancel out."""
        errors = {site: _relative(*squares) for site, squares in self.squares(config, tensors).items()}
        return {site: error for site, error in errors.items() if error is not None}


def _relative(difference: float, size: float) -> float | None:
    if difference == 0.0:
        return 0.0
    return float(np.sqrt(difference / size)) if size > 0.0 else None


class Constant(Mixture):
    """The mixture of adapters whose soups all have one residual, so that nothing is stored.

    0.0 where they are linear in their tensors (heads), whose average is exact; None where their updates have no
    weighted mean (`Structure.no_exact_mixture`).
    """

    def __init__(self, residual: float | None) -> None:
        self._residual = residual

    def add(self, config: Any, tensors: Tensors, factor: Factor) -> None:
        """Do nothing."""

    def residual(self, _config: Any, _tensors: Tensors) -> float | None:
        """The residual of all soups."""
        return self._residual
