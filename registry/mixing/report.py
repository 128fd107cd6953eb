"""The report on a soup: sizes in and out, what it costs to run, how far it is from the exact mixture.

The exact mixture is the weighted mean of the ingredients' outputs in every layer; what that is, is the structure's
affair (`adapters.mixture`). Called by `cook.mix`; the catalogue keeps the report with the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from registry.adapters import entry_of, expected_tensors, mixture_of
from registry.adapters.loadable import Tensors
from registry.adapters.weights import count_parameters
from registry.mixing import sparse
from registry.mixing.compat import SoupIngredient
from registry.spec import AdapterConfig, BaseShape, Mixing, MixReport, Recipe

TOLERANCE = 1e-5
"""Of a tensor's norm: how far apart two machines may be that make one soup by LAPACK."""


class ExactMixture:
    """What the ingredients give together, each with its weight, all times the mixing's scale; none of them yet.

    It is gathered while a mixing method reads the ingredients, so that none is read twice.
    """

    def __init__(self, config: AdapterConfig, shape: BaseShape, mixing: Mixing) -> None:
        self._mixture = mixture_of(config, shape)
        self._scale = float(mixing.scale or 1)

    def watched(self, part: SoupIngredient) -> SoupIngredient:
        """The part, taken into account when it is loaded; it has to be loaded exactly once.

        Of a bank of experts the exact mixture is the mean over all of its routes.
        """

        def load() -> Tensors:
            tensors = part.load()
            routes = entry_of(part.config).routes
            found = [tensors] if routes is None else routes(part.config, tensors)
            for one in found:
                self._mixture.add(part.config.merged or part.config, one, part.factor(self._scale / len(found)))
            return tensors

        return replace(part, load=load)

    def residuals(self, config: AdapterConfig, tensors: Tensors) -> dict[str, float] | None:
        """The same at each site; None where it has no size at a site."""
        return self._mixture.residuals(config, tensors)

    def residual(self, config: AdapterConfig, tensors: Tensors) -> float | None:
        """The relative error of a soup; None where there is none, for the structure or as the ingredients cancel."""
        return self._mixture.residual(config, tensors)


def report_of(
    parts: Sequence[SoupIngredient],
    recipe: Recipe,
    config: AdapterConfig,
    tensors: Tensors,
    *,
    shape: BaseShape,
    residual: float | None,
    residuals: dict[str, float] | None = None,
    by_lapack: bool = False,
) -> MixReport:
    """The report of a soup of `config` and `tensors`; `parts` are in the order of the recipe."""
    no_residual = config.no_exact_mixture or "The ingredients cancel each other out: no residual can be given."
    machine = f"Its bytes depend on the machine and its libraries; others give the same tensors to {TOLERANCE:g}."
    return MixReport(
        method=recipe.mixing.method,
        members=len(parts),
        weights=tuple(part.weight for part in parts),
        parameters=count_parameters(config, tensors),
        size_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        width_in=tuple((part.config.merged or part.config).width for part in parts),
        width_out=config.width,
        relative_cost=relative_cost([part.config for part in parts], config, shape),
        residual=residual,
        residuals=residuals,
        notes=(
            *sparse.notes(parts, recipe, config),
            *((machine,) if by_lapack else ()),
            *((no_residual,) if residual is None else ()),
        ),
    )


def relative_cost(members: Sequence[AdapterConfig], soup: AdapterConfig, shape: BaseShape) -> float:
    """Multiplications a token of the base with the soup, over those of the base with a mean ingredient.

    Those of the linear modules and the projections; what attention multiplies besides depends on the length of the
    text and is the same in both.
    """
    base = sum(inputs * outputs for inputs, outputs in shape.linears.values())
    own = {config: _multiplications(config, shape) for config in {*members, soup}}
    mean = sum(own[config] for config in members) / len(members)
    return (base + own[soup]) / (base + mean)


def _multiplications(config: AdapterConfig, shape: BaseShape) -> int:
    """Of an adapter's projections, for one token: an entry of a matrix is used once, and of a bank one expert."""
    sizes = expected_tensors(config.merged or config, shape).values()
    return sum(math.prod(size) for size in sizes if len(size) == 2)
