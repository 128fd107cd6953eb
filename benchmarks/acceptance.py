"""The false positive rate of the acceptance rule for held-out passages, on simulated differences.

Passages are of unequal length, and a soup's NLL per token differs from the base model's by noise only. `claimed_...`
are the shares of draws in which the rule (`registry.cook.acceptance`) accepts the soup, the largest over numbers of
passages. The rule's target is one in twenty:

- of one soup, and of the best of two and of four whose differences correlate, as soups of the same adapters do;
- `claimed_uncounted`: of the best of several, judged as if it were the only one;
- `claimed_skewed`: of one soup that makes a few passages much worse and all others a little better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.report import Result, options
from demo.results import Figure
from registry.cook.acceptance import LEVEL, verification_of

PASSAGES, CORRELATIONS, DRAWS = (5, 8, 15, 20), (0.5, 0.9), 2000
SPREAD = 0.05
"""Nats a token by which passages differ."""
TAILS = 4.0
"""Degrees of freedom of Student's t."""
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Simulated soups and their number of passages.

    `noise` is `normal`, `t` or `skewed`; all soups share a part of it if they `correlate`, and each is `worse` than the
    base by this many nats per token. The best is judged as the best of `counted` (None: of all), or, without
    `held_out`, by the rule for passages that chose it.
    """

    passages: int
    ways: int = 1
    noise: str = "normal"
    correlation: float = 0.0
    counted: int | None = None
    worse: float = 0.0
    held_out: bool = True

    def claimed(self, draw: np.random.Generator, draws: int) -> float:
        """The share of draws in which the best of the soups is accepted."""
        return sum(self._is_claimed(draw) for _ in range(draws)) / draws

    def _is_claimed(self, draw: np.random.Generator) -> bool:
        tokens = draw.integers(40, 400, self.passages)
        common, independent = self._noise(draw, 1), self._noise(draw, self.ways)
        noise = self.correlation**0.5 * common + (1 - self.correlation) ** 0.5 * independent
        sums = (self.worse + SPREAD * noise) * tokens
        best, base = sums[sums.sum(axis=1).argmin()], 3.5 * tokens
        ways = self.counted or self.ways
        return verification_of(base + best, base, tokens, held_out=self.held_out, ways=ways).helps

    def _noise(self, draw: np.random.Generator, soups: int) -> Float64:
        """(soups, passages), zero in the mean."""
        shape = (soups, self.passages)
        if self.noise == "skewed":
            return draw.exponential(size=shape) - 1.0
        return draw.standard_t(TAILS, shape) if self.noise == "t" else draw.normal(size=shape)


ONE = [Case(0, noise=noise) for noise in ("normal", "t")]
FIGURES: Mapping[str, tuple[list[Case], str]] = {
    "claimed_one": (ONE, "one soup, normal differences or Student's t"),
    **{
        f"claimed_best_of_{ways}": (
            [
                Case(0, ways=ways, noise=noise, correlation=correlation)
                for noise, correlation in product(("normal", "t"), CORRELATIONS)
            ],
            "the same, correlated by 0.5 and 0.9",
        )
        for ways in (2, 4)
    },
    "claimed_uncounted": (
        [Case(0, ways=ways, correlation=correlation, counted=1) for ways, correlation in product((2, 4), CORRELATIONS)],
        "the best of two and of four, judged as one",
    ),
    "claimed_skewed": ([Case(0, noise="skewed")], "one soup, differences distributed as an exponential"),
}
"""The cases behind each figure, on every number of passages."""


def run(*, draws: int) -> Result:
    """Every case on every number of passages."""
    result, draw = Result(), np.random.default_rng(0)
    for figure, (cases, note) in FIGURES.items():
        rows: list[dict[str, Any]] = []
        for case, passages in product(cases, PASSAGES):
            sized_case = Case(**{**vars(case), "passages": passages})
            rows.append(
                {
                    "figure": figure,
                    "passages": passages,
                    "ways": sized_case.ways,
                    "noise": sized_case.noise,
                    "correlation": sized_case.correlation,
                    "claimed": sized_case.claimed(draw, draws),
                }
            )
        goal = None if figure in {"claimed_uncounted", "claimed_skewed"} else LEVEL
        most = max(row["claimed"] for row in rows)
        least = min(row["claimed"] for row in rows)
        result.figures[figure] = Figure(most, "share", goal, note=f"at least {least:.3f}; {note}; {draws} draws each")
        result.rows += rows
    return result


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--draws", type=int, default=DRAWS, help="samples that are drawn of each case")
    arguments = parser.parse_args()
    run(draws=arguments.draws).finish(arguments.out)


if __name__ == "__main__":
    main()
