"""The report on a soup: sizes in and out, what it costs to run, how far it is from the exact mixture.

Called by `cook` when a soup has been mixed; the catalogue keeps the report with the recipe.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from registry.adapters import expected_tensors
from registry.adapters.loadable import Tensors
from registry.adapters.masks import values
from registry.soup import sparse
from registry.soup.compat import Part
from registry.soup.residual import no_residual
from registry.spec import AdapterConfig, BaseShape, MixReport, Recipe


def report_of(
    parts: Sequence[Part],
    recipe: Recipe,
    config: AdapterConfig,
    tensors: Tensors,
    *,
    shape: BaseShape,
    residual: float | None,
) -> MixReport:
    """The report of a soup of `config` and `tensors`; `parts` are in the order of the recipe."""
    return MixReport(
        method=recipe.mixing.method,
        members=len(parts),
        weights=tuple(part.weight for part in parts),
        parameters=_parameters(config, tensors),
        size_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        width_in=tuple((part.config.merged or part.config).width for part in parts),
        width_out=config.width,
        relative_cost=relative_cost([part.config for part in parts], config, shape),
        residual=residual,
        notes=(*sparse.notes(parts, recipe, config), *(() if residual is not None else (no_residual(config),))),
    )


def _parameters(config: AdapterConfig, tensors: Tensors) -> int:
    """Without what is pruned; masks are no parameters."""
    stored = sum(tensor.numel() for tensor in values(tensors).values())
    return stored - sum(pruned.masked for pruned in config.pruned_parts().values())


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
