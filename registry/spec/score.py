"""Log-likelihoods and the figures made of them."""

from __future__ import annotations

import math

from registry.spec.frozen import Frozen

MAX_DIFFERENCE = 20.0
"""In nats per token. A greater change of perplexity is shown as this one, 5e10 percent, so that it stays readable."""


def relative_change(difference: float) -> float:
    """Return the relative change of perplexity for a difference of mean NLL, which is capped at MAX_DIFFERENCE."""
    return math.expm1(min(difference, MAX_DIFFERENCE))


class PassageScore(Frozen):
    """Log-likelihood of one text: `nll` in nats summed over `tokens`; `bytes` of its UTF-8; its number of `windows`."""

    nll: float
    tokens: int
    bytes: int
    windows: int = 1


class BaselineReport(Frozen):
    """A baseline on the same texts; `difference` is mean NLL per token, the model minus the baseline."""

    perplexity: float
    mean_nll: float
    difference: float
    standard_error: float
    interval: tuple[float, float] | None = None
    """The 90 % interval of the difference; None for a single text."""


class PerplexityReport(Frozen):
    """`perplexity` = exp(`mean_nll`); `standard_error` is that of `mean_nll` over texts (a lower bound)."""

    perplexity: float
    mean_nll: float
    standard_error: float
    bits_per_byte: float
    tokens: int
    texts: tuple[PassageScore, ...]
    baseline: BaselineReport | None = None


class Verification(Frozen):
    """A finished soup compared with the base on the sample it was cooked from: optimistic, as that text chose the soup.

    With an effort that weighs candidates, it is measured on `held_out` passages, which had no part in choosing.
    """

    base_nll: float
    soup_nll: float
    difference: float
    """Mean NLL per token, soup minus base; negative is better."""
    standard_error: float
    interval: tuple[float, float] | None = None
    """The 90 % interval of the difference; None for a single passage, and in evidence stored before intervals were."""
    passages: int
    tokens: int
    helps: bool
    """True when the soup beats the base by more than one paired standard error; on held-out passages by `margin`."""
    held_out: bool = False
    ways: int = 1
    """Number of tried soups, of which this one had the lowest loss on the passages."""
    margin: float | None = None
    """Required standard errors on held-out passages: two, or more if there are few passages or many `ways`. None if no
    passages were held out, for a single passage, and in older evidence."""
