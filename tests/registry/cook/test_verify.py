"""Verifying: what counts as beating the base, on the sample that chose and on passages that were held out."""

from __future__ import annotations

import numpy as np
import pytest

from registry.cook.verify import verification_of, why_not
from registry.errors import InvalidSample
from registry.spec import Verification


def verified(differences: list[float], *, held_out: bool) -> Verification:
    """Of passages of ten tokens with these differences of mean NLL."""
    base = np.full(len(differences), 30.0)
    return verification_of(base + 10 * np.array(differences), base, np.full(len(base), 10), held_out=held_out)


def test_on_the_sample_one_standard_error_is_asked_for_and_on_held_out_passages_two():
    some = [-0.1, -0.02, 0.02, -0.03, -0.04, 0.04, -0.02, -0.01, 0.03, -0.05]
    own, other = verified(some, held_out=False), verified(some, held_out=True)
    assert 1 < -own.difference / own.standard_error < 2
    assert (own.helps, other.helps) == (True, False)
    assert "On the 10 passages that were held out it does not beat the base model by two standard errors" in why_not(
        other
    )


def test_few_held_out_passages_have_to_show_more():
    """Three passages that are better by more than two errors have an interval with zero in it."""
    few = verified([-0.02, -0.1, -0.12], held_out=True)
    assert few.difference < -2 * few.standard_error
    assert few.interval is not None
    assert few.interval[1] > 0
    assert not few.helps
    assert "by more than so few passages leave open, as its 90 % interval holds zero: mean NLL" in why_not(few)
    many = verified([-0.02, -0.1, -0.12] * 5, held_out=True)
    assert many.helps


def test_without_a_token_nothing_is_said():
    with pytest.raises(InvalidSample, match="no token"):
        verification_of(np.zeros(2), np.zeros(2), np.zeros(2), held_out=True)
