"""Stability of a choice: the same as sorting every draw's candidates, whatever ties there are."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.selectors.stability import DRAWS, SEED, UnitScores


def slowly(units: UnitScores, allowed: np.ndarray, *, most: int, best_anyway: bool) -> np.ndarray:
    """Every draw's candidates in order, one after the other."""
    count, candidates = units.scores.shape
    times = np.random.default_rng(SEED).multinomial(count, np.full(count, 1.0 / count), size=DRAWS).astype(np.float64)
    scores = np.where(allowed, times @ units.scores / count, -np.inf)
    ties = np.zeros_like(scores) if units.ties is None else times @ units.ties
    chosen = np.zeros(candidates)
    for draw in range(DRAWS):
        ranked = sorted(range(candidates), key=lambda one: (-scores[draw, one], -ties[draw, one], units.order[one]))
        taken = [one for one in ranked[:most] if allowed[one] and scores[draw, one] >= units.least]
        if best_anyway and not taken and allowed[ranked[0]]:
            taken = ranked[:1]
        chosen[taken] += 1
    return chosen / DRAWS


@settings(max_examples=25)
@given(data=st.data(), seed=st.integers(0, 2**16), candidates=st.integers(1, 6), with_ties=st.booleans())
def test_it_is_the_share_of_draws_by_a_full_sort(
    data: st.DataObject, seed: int, candidates: int, with_ties: bool
) -> None:
    draw = np.random.default_rng(seed)
    scores, ties = (draw.integers(0, 3, (4, candidates)).astype(np.float64) for _ in range(2))  # many are equal
    units = UnitScores(scores, 1.0, draw.permutation(candidates), ties if with_ties else None)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=candidates, max_size=candidates)))
    for most in (1, 2, candidates + 1):
        for best_anyway in (False, True):
            found = units.chosen(allowed, most=most, best_anyway=best_anyway)
            assert np.allclose(found, slowly(units, allowed, most=most, best_anyway=best_anyway))
