"""Ticks of an axis: how far apart they are, and with how many places they are written. Used by pictures and pages."""

from __future__ import annotations

import math


def tick_step(rough: float) -> float:
    """From one tick to the next, at least so much: 1, 2 or 5 times a power of ten."""
    rough = max(rough, 1e-7)
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * times for times in (1, 2, 5, 10) if power * times >= rough * 0.999)


def tick_places(step: float) -> int:
    """Places behind the point that a step needs."""
    return max(0, -math.floor(math.log10(step) + 1e-9))
