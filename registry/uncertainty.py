"""Standard errors of perplexity figures, and intervals of differences (docs/explanation/methods.md#uncertainty).

They are bootstrapped over passages. Several passages can come from one document, so each is a lower bound; it covers
the noise of the test text only, not the spread over draws of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from registry.errors import InvalidParameter

COVERAGE = 0.9
"""Share of intervals that contain the true difference."""
RESAMPLES = 2000
"""Resamples of a bootstrap."""
Numbers = Sequence[float] | Sequence[int] | np.ndarray
_CELLS = 2**22  # resamples are drawn in slices of at most this many counts (64 MiB as integers and as floats)


@dataclass(frozen=True)
class Difference:
    """Mean NLL per token of a minus that of b, in nats, its bootstrap standard error and its 90 % interval."""

    difference: float
    standard_error: float
    interval: tuple[float, float] | None
    """None for a single passage, whose spread is unknown."""


def paired_difference(nll_a: Numbers, nll_b: Numbers, tokens: Numbers, *, seed: int = 0) -> Difference:
    """delta = sum(a - b) / sum(tokens) over passages, NLLs in nats summed per passage.

    The standard error is that of the ratio over RESAMPLES resamples of passages, 0 for a single passage. The interval
    is of Student's t. Raises InvalidParameter where values are not finite or no passage has a token.
    """
    a, b = np.asarray(nll_a, dtype=np.float64), np.asarray(nll_b, dtype=np.float64)
    counts = np.asarray(tokens, dtype=np.float64)
    sums = a - b
    _check(sums, counts)
    error = _bootstrap(sums, counts, seed=seed)
    difference, passages = float(sums.sum() / counts.sum()), int((counts > 0).sum())
    return Difference(difference, error, _interval(difference, error, passages))


def ratio_standard_error(nll: Numbers, tokens: Numbers, *, seed: int = 0) -> float:
    """Bootstrap standard error of sum(nll) / sum(tokens) over passages; see `paired_difference`."""
    sums, counts = np.asarray(nll, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    _check(sums, counts)
    return _bootstrap(sums, counts, seed=seed)


def _check(sums: np.ndarray, counts: np.ndarray) -> None:
    if not np.isfinite(sums).all():
        raise InvalidParameter("Likelihoods must be finite.", param="texts")
    if not counts.sum() > 0:
        raise InvalidParameter("The texts hold no token to score.", param="texts")


def _bootstrap(sums: np.ndarray, counts: np.ndarray, *, seed: int) -> float:
    """Standard deviation of the ratio of sums over resamples of the passages that have tokens.

    Corrected by sqrt(n / (n - 1)), as resamples of n passages vary less than n new passages would.
    """
    scored = counts > 0
    sums, counts = sums[scored], counts[scored]
    n = len(counts)
    ratios = [(times @ sums) / (times @ counts) for times in _draw_resamples(n, seed)]
    return float(np.concatenate(ratios).std(ddof=1)) * math.sqrt(n / max(1, n - 1))


def _draw_resamples(n: int, seed: int) -> Iterator[np.ndarray]:
    """Slices of an array (RESAMPLES, n): how often each of n passages is in each resample."""
    rng = np.random.default_rng(seed)
    step = max(1, _CELLS // n)
    for start in range(0, RESAMPLES, step):
        yield rng.multinomial(n, np.full(n, 1.0 / n), size=min(step, RESAMPLES - start)).astype(np.float64)


def _interval(difference: float, error: float, passages: int) -> tuple[float, float] | None:
    if passages < 2:
        return None
    reach = t_quantile(passages, (1 - COVERAGE) / 2) * error
    return difference - reach, difference + reach


def t_quantile(passages: int, level: float) -> float:
    """The number of standard errors that a mean over `passages` exceeds with probability `level` (Student's t)."""
    return float(stdtrit(passages - 1, 1 - level))
