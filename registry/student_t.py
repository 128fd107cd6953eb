"""Student's t: how many standard errors an interval reaches to either side.

Called by `uncertainty` and by whoever draws intervals. Pure Python, so that a client draws them where nothing computes.
"""

from __future__ import annotations

import math
from statistics import NormalDist

COVERAGE = 0.9
"""How often an interval holds what it is of."""
_STEPS, _EXACT = 100, 1e-13


def reach_of(passages: int, level: float) -> float:
    """Standard errors of two passages or more that Student's t leaves beyond with probability `level`, on one side.

    `level` is below a half. Found by Newton's steps from the normal distribution's, which is smaller: the tail is
    convex, so that no step goes too far.
    """
    freedom = passages - 1
    t = NormalDist().inv_cdf(1 - level)
    for _ in range(_STEPS):
        step = (_beyond(t, freedom) - level) / _density(t, freedom)
        t += step
        if abs(step) <= _EXACT * t:
            break
    return t


def _beyond(t: float, freedom: int) -> float:
    """The probability of more than `t` > 0, by the finite series for whole degrees of freedom.

    Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    square, odd = math.cos(angle) ** 2, freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1, (freedom - odd) // 2 + 1):
        total += term
        term *= square * (2 * k / (2 * k + 1) if odd else (2 * k - 1) / (2 * k))
    within = math.sin(angle) * total
    return (1 - (2 / math.pi * (angle + within) if odd else within)) / 2


def _density(t: float, freedom: int) -> float:
    scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    return math.exp(scale - (freedom + 1) / 2 * math.log1p(t * t / freedom))
