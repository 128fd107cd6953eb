"""Perplexity from scores: the formulas by hand, against a baseline, and where there is nothing to say."""

from __future__ import annotations

import math

import pytest

from registry.errors import InvalidParameter
from registry.evaluate import report
from registry.spec import PassageScore


def scores(*rows: tuple[float, int]) -> list[PassageScore]:
    return [PassageScore(nll=nll, tokens=tokens, bytes=tokens * 4) for nll, tokens in rows]


def test_the_figures_by_hand():
    found = report(scores((10.0, 4), (2.0, 2)))
    assert found.mean_nll == pytest.approx(2.0)
    assert found.perplexity == pytest.approx(math.exp(2.0))  # over tokens, not over texts
    assert found.bits_per_byte == pytest.approx(12 / math.log(2) / 24)
    assert (found.tokens, len(found.texts), found.baseline) == (6, 2, None)
    assert found.standard_error > 0


def test_against_a_baseline_the_difference_is_paired():
    ours, theirs = scores((10.0, 4), (2.0, 2)), scores((14.0, 4), (4.0, 2))
    baseline = report(ours, theirs).baseline
    assert baseline is not None
    assert baseline.difference == pytest.approx(-1.0)
    assert baseline.standard_error == pytest.approx(0.0)  # each token is better by the same
    assert (baseline.mean_nll, baseline.perplexity) == (pytest.approx(3.0), pytest.approx(math.exp(3.0)))
    assert report(ours, ours).baseline.difference == 0.0


def test_nothing_to_score_and_other_tokens():
    with pytest.raises(InvalidParameter, match="no token"):
        report(scores((0.0, 0)))
    with pytest.raises(InvalidParameter, match="counts other tokens"):
        report(scores((1.0, 4)), scores((1.0, 5)))
