"""Bootstrap standard errors against theory and a slow bootstrap written out; perplexity from scores by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import registry.uncertainty as uncertainty
from registry.errors import InvalidParameter
from registry.evaluate.perplexity import report
from registry.spec import PassageScore
from registry.uncertainty import paired_difference, ratio_standard_error

passages = st.lists(st.tuples(st.floats(0, 500), st.floats(0, 500), st.integers(1, 400)), min_size=1, max_size=30).map(
    lambda rows: tuple(np.array(column) for column in zip(*rows, strict=True))
)


def test_difference_is_the_ratio_of_sums_not_the_mean_of_ratios():
    assert paired_difference([10.0, 300.0], [12.0, 200.0], [1, 100]).difference == 98.0 / 101.0


@pytest.mark.parametrize("passages", [2, 9])
def test_intervals_are_those_of_student(passages: int, monkeypatch):
    monkeypatch.setattr(uncertainty, "RESAMPLES", 40_000)
    values = np.random.default_rng(7).normal(size=passages)
    estimate = paired_difference(values, np.zeros(passages), np.ones(passages))
    theirs = stats.t.interval(0.9, df=passages - 1, loc=values.mean(), scale=stats.sem(values))
    assert estimate.interval == pytest.approx(theirs, rel=0.03)


def test_equal_to_a_bootstrap_written_out(monkeypatch):
    monkeypatch.setattr(uncertainty, "RESAMPLES", 20_000)
    rng = np.random.default_rng(2)
    d, n = rng.normal(size=12), rng.integers(1, 50, size=12).astype(float)
    draws = [rng.integers(0, 12, size=12) for _ in range(20_000)]
    slow = np.std([d[i].sum() / n[i].sum() for i in draws], ddof=1) * math.sqrt(12 / 11)
    assert paired_difference(d, np.zeros(12), n).standard_error == pytest.approx(slow, rel=0.05)
    assert ratio_standard_error(d, n) == pytest.approx(slow, rel=0.05)


def test_pairing_removes_what_both_share():
    rng = np.random.default_rng(3)
    tokens = np.full(100, 100)
    hard = rng.normal(size=100) * 80 + 400
    a, b = hard + rng.normal(size=100), hard + 5
    estimate = paired_difference(a, b, tokens)
    assert estimate.difference == pytest.approx(-0.05, abs=0.005)
    assert estimate.standard_error < 0.1 * ratio_standard_error(a, tokens)


@given(passages)
def test_laws(rows):
    a, b, tokens = rows
    forward, backward = paired_difference(a, b, tokens), paired_difference(b, a, tokens)
    assert forward.difference == -backward.difference
    assert forward.standard_error == pytest.approx(backward.standard_error, abs=1e-12)
    assert forward.standard_error >= 0
    assert paired_difference(a, b, tokens) == forward
    same = paired_difference(a, a, tokens)
    assert (same.difference, same.standard_error) == (0, 0)
    shifted = paired_difference(a + 2.0 * tokens, b, tokens)
    assert shifted.difference == pytest.approx(forward.difference + 2.0, abs=1e-9)
    assert shifted.standard_error == pytest.approx(forward.standard_error, abs=1e-9)


def test_slices_of_resamples_change_nothing(monkeypatch):
    rng = np.random.default_rng(5)
    a, n = rng.normal(size=10), rng.integers(1, 9, size=10)
    whole = ratio_standard_error(a, n)
    monkeypatch.setattr(uncertainty, "_CELLS", 35)
    assert ratio_standard_error(a, n) == pytest.approx(whole, rel=1e-12)


def test_one_passage_says_nothing_and_those_without_tokens_are_left_out():
    single = paired_difference([3.0, 0.0], [2.0, 0.0], [4, 0])
    assert (single.standard_error, single.interval) == (0, None)
    with_empty = paired_difference([3.0, 0.0, 5.0], [2.0, 0.0, 5.5], [4, 0, 6])
    assert with_empty == paired_difference([3.0, 5.0], [2.0, 5.5], [4, 6])


@pytest.mark.parametrize(
    ("a", "b", "tokens", "match"),
    [
        ([], [], [], "no token"),
        ([1.0], [1.0], [0], "no token"),
        ([float("nan")], [1.0], [1], "finite"),
        ([float("inf")], [1.0], [1], "finite"),
    ],
)
def test_refused(a, b, tokens, match):
    with pytest.raises(InvalidParameter, match=match):
        paired_difference(a, b, tokens)


# --- perplexity from scores -------------------------------------------------------------------------


def scores(*rows: tuple[float, int]) -> list[PassageScore]:
    return [PassageScore(nll=nll, tokens=tokens, bytes=tokens * 4) for nll, tokens in rows]


def test_the_figures_by_hand():
    figures = report(scores((10.0, 4), (2.0, 2)))
    expected = (2.0, math.exp(2.0), 12 / math.log(2) / 24)  # the perplexity is over tokens, not over texts
    assert (figures.mean_nll, figures.perplexity, figures.bits_per_byte) == pytest.approx(expected)
    assert (figures.tokens, len(figures.texts), figures.baseline) == (6, 2, None)
    assert figures.standard_error > 0


def test_against_a_baseline_the_difference_is_paired():
    ours, theirs = scores((10.0, 4), (2.0, 2)), scores((14.0, 4), (4.0, 2))
    baseline = report(ours, theirs).baseline
    assert (baseline.difference, baseline.standard_error) == pytest.approx((-1.0, 0.0))  # the same for each token
    assert (baseline.mean_nll, baseline.perplexity) == (pytest.approx(3.0), pytest.approx(math.exp(3.0)))
    assert report(ours, ours).baseline.difference == 0.0


def test_nothing_to_score_and_other_tokens():
    with pytest.raises(InvalidParameter, match="no token"):
        report(scores((0.0, 0)))
    with pytest.raises(InvalidParameter, match="counts other tokens"):
        report(scores((1.0, 4)), scores((1.0, 5)))
