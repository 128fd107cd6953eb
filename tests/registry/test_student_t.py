"""How far an interval reaches: scipy's quantiles of Student's t, found without scipy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from registry.student_t import reach_of


@given(passages=st.integers(2, 3_000), level=st.floats(1e-5, 0.49))
def test_it_is_the_quantile_of_students_t(passages: int, level: float) -> None:
    assert reach_of(passages, level) == pytest.approx(float(stdtrit(passages - 1, 1 - level)), rel=1e-8)


@given(passages=st.integers(2, 500), level=st.floats(1e-4, 0.4))
def test_more_passages_reach_less_far_and_a_smaller_level_farther(passages: int, level: float) -> None:
    assert reach_of(passages + 1, level) < reach_of(passages, level) < reach_of(passages, level / 2)
