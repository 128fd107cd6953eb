"""The perplexity verb: figures with uncertainty from log-likelihoods of texts, also against a baseline.

Called by the perplexity route, which runs the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from registry.errors import InvalidParameter
from registry.spec import BaselineReport, PassageScore, PerplexityReport
from registry.uncertainty import paired_difference, ratio_standard_error


def report(
    scores: Sequence[PassageScore], baseline: Sequence[PassageScore] | None = None, *, seed: int = 0
) -> PerplexityReport:
    """Perplexity = exp(sum NLL / sum tokens), bits per byte, and standard errors over texts.

    docs/explanation/methods.md#perplexity and #uncertainty define them. `baseline` holds the same texts scored by
    another model; the difference is paired (this minus baseline, mean NLL per token). Raises InvalidParameter where
    there is nothing to score or the two do not match.
    """
    nll, tokens = _columns(scores)
    standard_error = ratio_standard_error(nll, tokens, seed=seed)
    total = int(tokens.sum())
    mean = float(nll.sum() / total)
    return PerplexityReport(
        perplexity=_exp(mean),
        mean_nll=mean,
        standard_error=standard_error,
        bits_per_byte=float(nll.sum()) / math.log(2) / sum(score.bytes for score in scores),
        tokens=total,
        texts=tuple(scores),
        baseline=None if baseline is None else _against(scores, baseline, seed=seed),
    )


def _exp(mean: float) -> float:
    try:
        return math.exp(mean)
    except OverflowError:
        raise InvalidParameter(
            f"The mean NLL is {mean:.0f} nats per token, too large for a perplexity: the adapter breaks the model.",
            param="model",
        ) from None


def _columns(scores: Sequence[PassageScore]) -> tuple[np.ndarray, np.ndarray]:
    """NLLs and token counts by passage."""
    nll = np.array([score.nll for score in scores], dtype=np.float64)
    tokens = np.array([score.tokens for score in scores], dtype=np.int64)
    return nll, tokens


def _against(scores: Sequence[PassageScore], baseline: Sequence[PassageScore], *, seed: int) -> BaselineReport:
    nll, tokens = _columns(scores)
    baseline_nll, baseline_tokens = _columns(baseline)
    if not np.array_equal(tokens, baseline_tokens):
        raise InvalidParameter(
            "The baseline counts other tokens: compare models of one base model only.", param="baseline"
        )
    paired = paired_difference(nll, baseline_nll, tokens, seed=seed)
    mean = float(baseline_nll.sum() / tokens.sum())
    return BaselineReport(perplexity=_exp(mean), mean_nll=mean, **vars(paired))
