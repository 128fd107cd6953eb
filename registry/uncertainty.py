"""Standard errors of perplexity figures, and intervals of differences (docs/explanation/methods.md#uncertainty).

They are bootstrapped over passages. Several passages can come from one document, so each is a lower bound; and it
covers the noise of the test text only, not the spread over draws of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import stdtrit

from registry.errors import InvalidParameter

COVERAGE = 0.9
"""Share of intervals that hold the true difference."""
Numbers = Sequence[float] | Sequence[int] | np.ndarray
_CELLS = 2**22  # resamples are drawn in slices of at most this many counts (64 MiB: as integers, and as floats)
_KEPT = 2**19
"""Counts of the resamples that are kept for the next figure over as many passages (4 MiB)."""


@dataclass(frozen=True)
class Difference:
    """Mean NLL per token of a minus that of b, in nats, its bootstrap standard error and its 90 % interval."""

    difference: float
    standard_error: float
    interval: tuple[float, float] | None
    """None for a single passage, which does not tell how far others would be from it."""


def paired_difference(
    nll_a: Numbers, nll_b: Numbers, tokens: Numbers, *, resamples: int = 2000, seed: int = 0
) -> Difference:
    """delta = sum(a - b) / sum(tokens) over passages, NLLs in nats summed per passage.

    The standard error is that of the ratio over `resamples` resamples of passages; with a single passage it is 0
    and says nothing. The interval reaches as many standard errors to either side as Student's t has it.
    Raises InvalidParameter where lengths differ, values are not finite or nothing has a token.
    """
    a, b = np.asarray(nll_a, dtype=np.float64), np.asarray(nll_b, dtype=np.float64)
    if a.shape != b.shape:
        raise InvalidParameter(f"{a.size} and {b.size} passages cannot be paired.", param="texts")
    counts = np.asarray(tokens, dtype=np.float64)
    sums = a - b
    _check(sums, counts)
    error = _bootstrap(sums, counts, resamples=resamples, seed=seed)
    difference, passages = float(sums.sum() / counts.sum()), int((counts > 0).sum())
    return Difference(difference, error, _interval(difference, error, passages))


def ratio_standard_error(nll: Numbers, tokens: Numbers, *, resamples: int = 2000, seed: int = 0) -> float:
    """Bootstrap standard error of sum(nll) / sum(tokens) over passages; see `paired_difference`."""
    sums, counts = np.asarray(nll, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    _check(sums, counts)
    return _bootstrap(sums, counts, resamples=resamples, seed=seed)


def _check(sums: np.ndarray, counts: np.ndarray) -> None:
    if sums.ndim != 1 or sums.shape != counts.shape:
        raise InvalidParameter(f"{sums.size} likelihoods and {counts.size} token counts do not match.", param="texts")
    if not np.isfinite(sums).all() or (counts < 0).any():
        raise InvalidParameter("Likelihoods must be finite and token counts not negative.", param="texts")
    if not counts.sum() > 0:
        raise InvalidParameter("The texts hold no token to score.", param="texts")


def _bootstrap(sums: np.ndarray, counts: np.ndarray, *, resamples: int, seed: int) -> float:
    """Standard deviation of the ratio of sums over resamples of the passages that have tokens.

    Resamples of n passages spread by sqrt((n - 1) / n) less than n others would, which is put right.
    """
    if resamples < 2:
        raise InvalidParameter(f"At least 2 resamples are needed, not {resamples}.", param="resamples")
    scored = counts > 0
    sums, counts = sums[scored], counts[scored]
    n = len(counts)
    few = n * resamples <= _KEPT
    ratios = [
        (times @ sums) / (times @ counts)
        for times in (_kept(n, resamples, seed) if few else _drawn(n, resamples, seed))
    ]
    return float(np.concatenate(ratios).std(ddof=1)) * math.sqrt(n / max(1, n - 1))


def _drawn(n: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each of n passages is in each resample: slices of (resamples, n)."""
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, step := max(1, _CELLS // n)):
        yield rng.multinomial(n, np.full(n, 1.0 / n), size=min(step, resamples - start)).astype(np.float64)


@lru_cache(maxsize=4)
def _kept(n: int, resamples: int, seed: int) -> tuple[np.ndarray, ...]:
    """The same, kept: drawing them takes some seventy times as long as what they are drawn for.

    Whoever compares several adapters on the same passages, as a cook does, draws the same resamples each time. The
    arrays are shared between threads, and cannot be written to.
    """
    drawn = tuple(_drawn(n, resamples, seed))
    for times in drawn:
        times.setflags(write=False)
    return drawn


def _interval(difference: float, error: float, passages: int) -> tuple[float, float] | None:
    if passages < 2:
        return None
    reach = t_quantile(passages, (1 - COVERAGE) / 2) * error
    return difference - reach, difference + reach


def t_quantile(passages: int, level: float) -> float:
    """Standard errors that the mean of so many passages exceeds with probability `level`, by Student's t."""
    return float(stdtrit(passages - 1, 1 - level))
