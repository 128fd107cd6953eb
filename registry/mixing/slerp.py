"""Spherical interpolation of two adapters (Shoemake, SIGGRAPH 1985, https://doi.org/10.1145/325334.325242).

Of each projection the way from one to the other along the arc between them, as far as the second's weight t says:
sin((1 - t) phi) / sin(phi) theta_1 + sin(t phi) / sin(phi) theta_2 with phi the angle between them. The factors are
found by halving the arc, with + - * / and square roots alone, so that they are the same bits on every machine. Where
the two point the same way or oppositely, or one is nothing, it is the average.
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
"""Of the squared sine of the angle: below it there is no arc to go along."""


def too_many(parts: Sequence[SoupIngredient], _mixing: SlerpMixing, _max_width: int) -> list[str]:
    """One sentence where there are more than two."""
    if len(parts) <= 2:
        return []
    return [f"An arc goes between two adapters, and these are {len(parts)}: leave some out, or mix by 'average'."]


def mix(parts: Sequence[SoupIngredient], mixing: SlerpMixing) -> dict[str, Tensor]:
    """The soup's tensors; raises InvalidRecipe where they are not finite."""

    def merged(values: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        first, second = factors(values[0], values[1], float(weights[1]))
        return first * values[0] + second * values[1]

    return entrywise.mixed(parts, mixing, lambda _: merged)


def factors(one: Tensor, two: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """What each is multiplied by, fp32, for a weight of `share` of the second."""
    lengths = math.sqrt(_dot(one, one)) * math.sqrt(_dot(two, two))
    cosine = _dot(one, two) / lengths if lengths > 0 and math.isfinite(lengths) else 1.0
    squared_sine = (1.0 - cosine) * (1.0 + cosine)
    if squared_sine < PARALLEL:
        found = 1.0 - share, share
    else:
        sine = math.sqrt(squared_sine)
        along, across = _on_the_arc(cosine, sine, share)
        found = along - across * cosine / sine, across / sine
    return torch.tensor(found[0], dtype=torch.float32), torch.tensor(found[1], dtype=torch.float32)


def _on_the_arc(cosine: float, sine: float, share: float) -> tuple[float, float]:
    """The point of the unit circle at `share` of the way from (1, 0) to (cosine, sine)."""
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


def _dot(one: Tensor, two: Tensor) -> float:
    """Exactly rounded, so the same on every machine; products of fp32 values are exact in double precision."""
    return math.fsum((one.double() * two.double()).flatten().tolist())
