"""Novelty of a sample: the percentile of its distance to the pool among the distances of the pool's held-out text.

A unit's distance is to the nearest domain, a held-out unit's to its own domain. The sample's distance is the median of
its units' distances. The percentile of a sample from a domain of the pool should be near 50 or below; that of a sample
unlike all domains, near 100.
"""

from __future__ import annotations

import numpy as np

from registry.selectors.contract import Float64

NOVEL = 95.0
"""The percentile from which on a sample counts as novel to the pool."""


def novelty_warning(percent: float) -> str:
    """The warning for a sample whose novelty is `percent`."""
    return (
        f"The sample is farther from its nearest domains than {percent:.0f} % of their own text is from them: "
        "no domain is really like it, and the shares only rank the nearest ones."
    )


def percentile(distance: float, reference: Float64) -> float:
    """Percent of the `reference` distances (sorted, not empty) below `distance`, ties by half."""
    below = int(np.searchsorted(reference, distance, side="left"))
    upto = int(np.searchsorted(reference, distance, side="right"))
    return 100.0 * (below + upto) / 2 / len(reference)


def novelty(distances: Float64, reference: Float64) -> float:
    """Percentile among `reference` of the median over units of the least of their `distances` (units, domains)."""
    return percentile(float(np.median(distances.min(axis=1))), reference)
