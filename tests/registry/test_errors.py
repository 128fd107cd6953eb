"""What every message says in the same words."""

from __future__ import annotations

import pytest

from registry.errors import more_problems


@pytest.mark.parametrize(
    ("found", "said"),
    [(0, ""), (1, ""), (2, " (1 more problem)"), (3, " (2 more problems)"), (51, " (50 more problems)")],
)
def test_problems_beyond_the_first_are_counted(found: int, said: str) -> None:
    assert more_problems(found) == said


def test_after_a_whole_sentence_the_brackets_are_one_too() -> None:
    assert more_problems(1, stop=".") == ""
    assert more_problems(2, stop=".") == " (1 more problem.)"
