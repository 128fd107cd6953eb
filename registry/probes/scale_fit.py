"""The factor that a server multiplies an adapter's update by: a fit of its readings to those stored at some scales.

Between the scales the log-probability of each token is interpolated by a cubic spline. Its distance from a straight
line estimates the error of the curve there; at the scales themselves the curve is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline

from registry.probes.distance import distance, spelt_alike
from registry.spec import SCALED_TEXTS, AdapterProbe, NextTokens, Readings

SCALES = tuple(2.0 ** (step / 2) for step in (-4, -3, -2, -1, 1, 2, 3, 4))
"""Powers of the square root of 2: a scale of alpha / rank that is left out, or taken for alpha / sqrt(rank), is one."""
SPACING = 0.0125
"""The distance between two tried factors below 1; above 1 it grows with the factor."""


class ScaleFit(NamedTuple):
    """The factor of least distance, that distance, and how well the curve is known there, in nats."""

    factor: float
    error: float
    uncertainty: float


def fit_scale(server: Readings, base: Readings, probe: AdapterProbe) -> ScaleFit | None:
    """Fit the factor on the first texts; None for an adapter whose update has no scale."""
    if not probe.scales:
        return None
    knots = sorted([(0.0, base), (1.0, probe.readings), *zip(probe.scales, probe.scaled, strict=True)])
    scales = np.array([scale for scale, _ in knots])
    curves = [
        _Curve.through(scales, [readings[text] for _, readings in knots])
        for text in range(min(SCALED_TEXTS, len(server)))
    ]
    factors = np.unique(np.concatenate([scales, np.arange(0, 1, SPACING), np.geomspace(1, scales[-1], 120)]))
    first = server[: len(curves)]
    errors = [distance(first, [curve.at(factor) for curve in curves]) for factor in factors]
    best = int(np.argmin(errors))
    straight = [curve.at(factors[best], straight=True) for curve in curves]
    uncertainty = distance(straight, [curve.at(factors[best]) for curve in curves])
    return ScaleFit(float(factors[best]), errors[best], uncertainty)


class _Curve(NamedTuple):
    """The log-probabilities of the next tokens of one text by scale."""

    scales: np.ndarray
    tokens: tuple[str, ...]
    values: np.ndarray  # (scales, tokens)
    spline: CubicSpline

    @classmethod
    def through(cls, scales: np.ndarray, readings: list[NextTokens]) -> _Curve:
        """The curve through the readings at `scales`; a token that one does not list is as likely as its last."""
        alike = [spelt_alike(tokens) for tokens in readings]
        tokens = tuple(dict.fromkeys(token for listed in alike for token in listed))
        values = np.array([[listed.get(token, min(listed.values())) for token in tokens] for listed in alike])
        return cls(scales, tokens, values, CubicSpline(scales, values))

    def at(self, factor: float, *, straight: bool = False) -> NextTokens:
        """The next tokens at a factor, the likeliest first."""
        if straight:
            values = np.array([np.interp(factor, self.scales, column) for column in self.values.T])
        else:
            values = self.spline(factor)
        order = np.argsort(-values, kind="stable")
        return {self.tokens[index]: float(values[index]) for index in order}
