"""Spherical interpolation of two adapters (Shoemake, SIGGRAPH 1985, https://doi.org/10.1145/325334.325242).

Each projection is a point on the arc from the first ingredient to the second, at the second's weight t:
sin((1 - t) phi) / sin(phi) theta_1 + sin(t phi) / sin(phi) theta_2 with phi the angle between them. The factors are
found by halving the arc, with + - * / and square roots alone, which gives the same bits on every machine. Where the
two are parallel or opposite, or one is zero, it is the average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from registry.mixing import entrywise
from registry.mixing.compat import SoupIngredient
from registry.spec import SlerpMixing

HALVINGS = 60
PARALLEL = 1e-9
"""Squared sine of the angle below which two vectors count as parallel."""


def too_many(ingredients: Sequence[SoupIngredient], _mixing: SlerpMixing, _max_width: int) -> list[str]:
    """One sentence where there are more than two ingredients."""
    if len(ingredients) <= 2:
        return []
    return [f"An arc goes between two adapters, and these are {len(ingredients)}: leave some out, or mix by 'average'."]


def mix(ingredients: Sequence[SoupIngredient], mixing: SlerpMixing) -> dict[str, Tensor]:
    """The soup's tensors; raises InvalidRecipe where they are not finite."""
    return entrywise.mix_entries(ingredients, mixing, _interpolate)


def _interpolate(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    first, second = factors(values[0], values[1], float(weights[1]))
    return first * values[0] + second * values[1]


def factors(first: Tensor, second: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The factors of two tensors, fp32 scalars, for a weight of `share` of the second."""
    lengths = math.sqrt(_dot(first, first)) * math.sqrt(_dot(second, second))
    cosine = _dot(first, second) / lengths if lengths > 0 and math.isfinite(lengths) else 1.0
    squared_sine = (1.0 - cosine) * (1.0 + cosine)
    if squared_sine < PARALLEL:
        of_first, of_second = 1.0 - share, share
    else:
        sine = math.sqrt(squared_sine)
        along, across = _point_on_arc(cosine, sine, share)
        of_first, of_second = along - across * cosine / sine, across / sine
    return torch.tensor(of_first, dtype=torch.float32), torch.tensor(of_second, dtype=torch.float32)


def _point_on_arc(cosine: float, sine: float, share: float) -> tuple[float, float]:
    """The point of the unit circle at `share` of the arc from (1, 0) to (cosine, sine)."""
    low, high = (1.0, 0.0), (cosine, sine)
    start, end = 0.0, 1.0
    for _ in range(HALVINGS):
        across = low[0] + high[0], low[1] + high[1]
        length = math.sqrt(across[0] * across[0] + across[1] * across[1])
        middle, between = (across[0] / length, across[1] / length), (start + end) / 2
        if share < between:
            high, end = middle, between
        else:
            low, start = middle, between
    return low


def _dot(first: Tensor, second: Tensor) -> float:
    """The dot product, exactly rounded and so the same on every machine: fp64 holds products of fp32 values exactly."""
    return math.fsum((first.double() * second.double()).flatten().tolist())
