"""Perplexity over the control adapter's, from the rows of a results file; also for the pages that quote them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any


def over_control(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Geometric mean over domains and draws, and its standard error.

    Draws of one domain share the test passages, so that their errors are averaged and not reduced.
    """
    errors: dict[str, list[float]] = {}
    for row in rows:
        errors.setdefault(row["domain"], []).append(row["over_error"])
    ratio = math.exp(fmean(row["over"] for row in rows))
    return ratio, ratio * math.hypot(*map(fmean, errors.values())) / len(errors)
