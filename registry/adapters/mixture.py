"""Exact mixtures: the weighted mean of what adapters of one structure add, to hold a soup of them against.

A structure's entry in `STRUCTURES` makes its own; `soup.report` fills it while a mixing method reads the
ingredients. In double precision and through BLAS: a figure of the report, no byte of a soup depends on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from registry.adapters.loadable import Tensors

Factor = Callable[[str], float]
"""What an ingredient is multiplied by at a site: `layers.3.ffn` of a bottleneck, of a LoRA a module's path."""


def everywhere(value: float) -> Factor:
    """The same factor at every site."""
    return lambda _site: value


class Mixture(ABC):
    """What adapters add together, each times a factor. Configurations are those of the structure it is of."""

    def residuals(self, config: Any, tensors: Tensors) -> dict[str, float] | None:  # noqa: ARG002
        """The relative error of a soup at each site; None where it has no size at a site."""
        return None

    @abstractmethod
    def add(self, config: Any, tensors: Tensors, factor: Factor) -> None:
        """Take `factor` times what an adapter adds into account."""

    @abstractmethod
    def residual(self, config: Any, tensors: Tensors) -> float | None:
        """The relative error of a soup of this configuration and these tensors; None where there is none."""


class Measured(Mixture):
    """A mixture from which a soup's difference has a size, at each site."""

    @abstractmethod
    def squares(self, config: Any, tensors: Tensors) -> dict[str, tuple[float, float]]:
        """Squared norms of the soup's difference from the exact mixture, and of the exact mixture, by site."""

    def residual(self, config: Any, tensors: Tensors) -> float | None:
        """The relative error of a soup; None where the ingredients cancel out and nothing is left to compare with."""
        found = self.squares(config, tensors).values()
        return _relative(sum(difference for difference, _ in found), sum(size for _, size in found))

    def residuals(self, config: Any, tensors: Tensors) -> dict[str, float]:
        """At each site; without those where the ingredients cancel out."""
        found = {site: _relative(*squares) for site, squares in self.squares(config, tensors).items()}
        return {site: error for site, error in found.items() if error is not None}


def _relative(difference: float, size: float) -> float | None:
    if difference == 0.0:
        return 0.0
    return float(np.sqrt(difference / size)) if size > 0.0 else None


class Constant(Mixture):
    """That of adapters whose soup has the same residual whatever they are, so that nothing has to be kept.

    0.0 where they are linear in their tensors (heads), whose average is exact; None where their updates have no
    weighted mean (`Structure.no_exact_mixture`).
    """

    def __init__(self, residual: float | None) -> None:
        self._residual = residual

    def add(self, config: Any, tensors: Tensors, factor: Factor) -> None:
        """Nothing is kept."""

    def residual(self, _config: Any, _tensors: Tensors) -> float | None:
        """The same for all."""
        return self._residual
