"""The file of a training's losses: whole at any moment, bounded, and what the record has at the end."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from training.losses_file import MOST_POINTS, read_losses, thinned


def test_there_is_none_before_it_is_written(tmp_path: Path) -> None:
    assert read_losses(tmp_path / "losses.json") is None


@given(st.integers(0, 12_000))
def test_many_points_become_few_with_the_first_and_the_last(count: int) -> None:
    points = [(step, float(step)) for step in range(count)]
    found = thinned(points)
    assert len(found) <= MOST_POINTS + 1
    assert found == sorted(set(found) & set(points))
    assert (found[:1], found[-1:]) == (points[:1], points[-1:])
    if count <= MOST_POINTS:
        assert found == points
