"""The report on a soup: sizes in and out, what it costs to run, how far it is from the exact mixture.

The exact mixture is the weighted mean of the ingredients' outputs in every layer, which each structure computes in its
own way (`adapters.mixture`). Called by `cook.mix`; the catalogue keeps the report with the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from registry.adapters import entry_of, expected_tensors, mixture_of
from registry.adapters.loadable import Tensors
from registry.adapters.weights import count_parameters, size_in_bytes
from registry.mixing import MIXINGS, sparse
from registry.mixing.compat import SoupIngredient
from registry.spec import AdapterConfig, BaseShape, Mixing, MixReport, Recipe

TOLERANCE = 1e-5
"""Largest difference, as a share of a tensor's norm, between two machines that make one soup by LAPACK."""


class ExactMixture:
    """The weighted sum of the ingredients' outputs, times the mixing's scale; empty at first.

    It is computed while a mixing method reads the ingredients, so that none is read twice.
    """

    def __init__(self, config: AdapterConfig, shape: BaseShape, mixing: Mixing) -> None:
        self.mixture = mixture_of(config, shape)
        self._scale = float(mixing.scale or 1)

    def watched(self, ingredient: SoupIngredient) -> SoupIngredient:
        """The ingredient, which is added to the mixture when it is loaded; it has to be loaded exactly once.

        A bank of experts adds the mean over all of its routes.
        """
        return replace(ingredient, load=partial(self._load, ingredient))

    def _load(self, ingredient: SoupIngredient) -> Tensors:
        tensors = ingredient.load()
        routes = entry_of(ingredient.config).routes
        members = [tensors] if routes is None else routes(ingredient.config, tensors)
        factor = ingredient.factor(self._scale / len(members))
        for member in members:
            self.mixture.add(ingredient.config.merged or ingredient.config, member, factor)
        return tensors


def report_of(
    ingredients: Sequence[SoupIngredient],
    recipe: Recipe,
    config: AdapterConfig,
    tensors: Tensors,
    *,
    shape: BaseShape,
    exact: ExactMixture,
) -> MixReport:
    """The report of a soup of `config` and `tensors`; `ingredients` are in the order of the recipe."""
    method = MIXINGS[recipe.mixing.method]
    residual = exact.mixture.residual(config, tensors)
    notes = list(sparse.notes(ingredients, recipe, config))
    if method.by_lapack:
        notes.append(
            f"Its bytes depend on the machine and its libraries; others give the same tensors to {TOLERANCE:g}."
        )
    if residual is None:
        cancelled = "The ingredients cancel each other out: no residual can be given."
        notes.append(config.no_exact_mixture or cancelled)
    return MixReport(
        method=recipe.mixing.method,
        members=len(ingredients),
        weights=tuple(ingredient.weight for ingredient in ingredients),
        parameters=count_parameters(config, tensors),
        size_bytes=size_in_bytes(tensors),
        width_in=tuple((ingredient.config.merged or ingredient.config).width for ingredient in ingredients),
        width_out=config.width,
        relative_cost=relative_cost([ingredient.config for ingredient in ingredients], config, shape),
        residual=residual,
        residuals=exact.mixture.residuals(config, tensors) if method.by_site else None,
        notes=tuple(notes),
    )


def relative_cost(ingredients: Sequence[AdapterConfig], soup: AdapterConfig, shape: BaseShape) -> float:
    """Multiplications a token of the base with the soup, over those of the base with a mean ingredient.

    Counts linear modules and projections; the other multiplications of attention depend on the length of the text and
    are the same in both.
    """
    base = sum(inputs * outputs for inputs, outputs in shape.linears.values())
    counts = {config: _multiplications(config, shape) for config in {*ingredients, soup}}
    mean = sum(counts[config] for config in ingredients) / len(ingredients)
    return (base + counts[soup]) / (base + mean)


def _multiplications(config: AdapterConfig, shape: BaseShape) -> int:
    """Multiplications a token of an adapter's projections, one for each entry; of a bank those of one expert."""
    sizes = expected_tensors(config.merged or config, shape).values()
    return sum(math.prod(size) for size in sizes if len(size) == 2)
