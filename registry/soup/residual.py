"""How far a soup is from the exact mixture: the weighted mean of its ingredients' outputs in every layer.

Called by `cook` for every report. `watched` gathers what the exact mixture gives while a mixing method reads the
ingredients, so that none is read twice. What the mixture is, is the structure's affair (`adapters.mixture`).
"""

from __future__ import annotations

from dataclasses import replace

from registry.adapters import entry_of, mixture_of
from registry.adapters.loadable import Tensors
from registry.soup.compat import Part
from registry.spec import AdapterConfig, BaseShape, Mixing


class ExactMixture:
    """What the ingredients give together, each with its weight, all times the mixing's scale; none of them yet."""

    def __init__(self, config: AdapterConfig, shape: BaseShape, mixing: Mixing) -> None:
        self._mixture = mixture_of(config, shape)
        self._scale = float(mixing.scale or 1)

    def watched(self, part: Part) -> Part:
        """The part, taken into account when it is loaded; it has to be loaded exactly once.

        Of a bank of experts the exact mixture is the mean over all of its routes.
        """

        def load() -> Tensors:
            tensors = part.load()
            routes = entry_of(part.config).routes
            found = [tensors] if routes is None else routes(part.config, tensors)
            for one in found:
                self._mixture.add(part.config.merged or part.config, one, float(part.weight) * self._scale / len(found))
            return tensors

        return replace(part, load=load)

    def residual(self, config: AdapterConfig, tensors: Tensors) -> float | None:
        """The relative error of a soup; None where there is none (`no_residual`)."""
        return self._mixture.residual(config, tensors)


def no_residual(config: AdapterConfig) -> str:
    """Why a soup of this configuration has no residual, a sentence for people."""
    return config.no_exact_mixture or "The ingredients cancel each other out: no residual can be given."
