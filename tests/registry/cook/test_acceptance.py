"""Verifying: what counts as beating the base, on the sample that chose and on passages that were held out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.acceptance import Case
from registry.cook.acceptance import verification_of, why_not
from registry.errors import InvalidSample
from registry.spec import Verification


def verified(differences: list[float], *, held_out: bool, ways: int = 1) -> Verification:
    """Of passages of ten tokens with these differences of mean NLL."""
    base = np.full(len(differences), 30.0)
    nll = base + 10 * np.array(differences)
    return verification_of(nll, base, np.full(len(base), 10), held_out=held_out, ways=ways)


def test_on_the_sample_one_standard_error_is_asked_for_and_on_held_out_passages_two():
    some = [-0.1, -0.02, 0.02, -0.03, -0.04, 0.04, -0.02, -0.01, 0.03, -0.05]
    own, other = verified(some, held_out=False), verified(some, held_out=True)
    assert 1 < -own.difference / own.standard_error < 2
    assert (own.helps, other.helps) == (True, False)
    assert "On the 10 held-out passages, the soup does not beat the base model by two standard errors" in why_not(other)


def test_few_held_out_passages_have_to_show_more():
    """Three passages that are better by more than two errors have an interval with zero in it."""
    few = verified([-0.02, -0.1, -0.12], held_out=True)
    assert few.difference < -2 * few.standard_error
    assert few.interval[1] > 0
    assert not few.helps
    assert few.margin == pytest.approx(2.92, abs=0.005)  # Student's t of two degrees of freedom
    assert "the base model by 2.92 standard errors, as required on so few passages: mean NLL" in why_not(few)
    many = verified([-0.02, -0.1, -0.12] * 5, held_out=True)
    assert many.helps
    assert many.margin == 2


def test_the_best_of_several_has_to_show_more_and_the_sentence_says_so() -> None:
    some = [-0.1, -0.02, 0.02, -0.03, -0.04, 0.03, -0.05, -0.03, 0.01, -0.06]
    alone, best = verified(some, held_out=True), verified(some, held_out=True, ways=4)
    assert (alone.helps, best.helps) == (True, False)
    assert best.margin == pytest.approx(2.685, abs=0.005)  # of 9 degrees of freedom, at a level of .0125
    assert "by 2.69 standard errors, as required of the best of 4 soups on so few passages:" in why_not(best)
    assert verified(some, held_out=False, ways=1).margin is None


def test_a_single_passage_says_nothing() -> None:
    assert not verified([-5.0], held_out=True).helps


def test_without_a_token_nothing_is_said():
    with pytest.raises(InvalidSample, match="no token"):
        verification_of(np.zeros(2), np.zeros(2), np.zeros(2), held_out=True)


NOMINAL, DRAWS = 0.05, 300
"""Of a 90 % interval one side; and so many samples are drawn."""


@settings(max_examples=4)
@given(st.integers(5, 15), st.integers(0, 2**16), st.sampled_from([0.0, 0.01]), st.sampled_from(["normal", "t"]))
def test_on_few_held_out_passages_what_does_not_help_is_claimed_to_no_more_than_nominally(
    passages: int, seed: int, worse: float, noise: str
) -> None:
    found = Case(passages, worse=worse, noise=noise).claimed(np.random.default_rng(seed), DRAWS)
    assert found <= NOMINAL + 3.5 * (NOMINAL * (1 - NOMINAL) / DRAWS) ** 0.5


@pytest.mark.parametrize("ways", [2, 4])
@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_the_best_of_several_that_do_not_help_is_claimed_to_no_more_than_nominally(
    ways: int, correlation: float
) -> None:
    found = Case(8, ways=ways, correlation=correlation).claimed(np.random.default_rng(1), DRAWS)
    assert found <= NOMINAL + 3.5 * (NOMINAL * (1 - NOMINAL) / DRAWS) ** 0.5
