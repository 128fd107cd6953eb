"""From scores to the table and to the result file. Averages over domains say whether they are arithmetic or geometric.

The difference of a cell is mean NLL per token against the base, with its paired standard error over passages
(2,000 bootstrap resamples; a lower bound, because several passages can come from one document).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from demo.measure import DomainResult
from registry.uncertainty import paired_difference
from service.commands.output import columns


@dataclass(frozen=True)
class Cell:
    """One model on one novel domain."""

    perplexity: float
    difference: float
    standard_error: float
    abstained: bool = False
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One way to choose, over every novel domain."""

    name: str
    cells: dict[str, Cell]

    @property
    def arithmetic(self) -> float:
        """Arithmetic mean of the perplexities."""
        return sum(cell.perplexity for cell in self.cells.values()) / len(self.cells)

    @property
    def geometric(self) -> float:
        """Geometric mean of the perplexities."""
        return math.exp(sum(math.log(cell.perplexity) for cell in self.cells.values()) / len(self.cells))


def rows_of(results: Sequence[DomainResult]) -> list[Row]:
    """Base, control, every strategy, and the best single adapter chosen on test text."""
    base = Row("base", {one.name: _cell(one.base, one.base) for one in results})
    control = Row("control adapter", {one.name: _cell(one.control, one.base) for one in results})
    names = [answer.strategy for answer, _ in results[0].answers]
    strategies = [
        Row(
            name,
            {
                one.name: _cell(score, one.base, abstained=answer.abstained, note=", ".join(answer.ingredients))
                for one in results
                for answer, score in one.answers
                if answer.strategy == name
            },
        )
        for name in names
    ]
    oracle = Row("oracle: best single on test", {one.name: _oracle(one) for one in results})
    return [base, control, *strategies[:-1], oracle, strategies[-1]]


def _cell(
    score: dict[str, list[float]], base: dict[str, list[float]], *, abstained: bool = False, note: str = ""
) -> Cell:
    nll, tokens = np.array(score["nll"]), np.array(score["tokens"])
    paired = paired_difference(nll, np.array(base["nll"]), tokens)
    perplexity = math.exp(nll.sum() / tokens.sum())
    return Cell(perplexity, paired.difference, paired.standard_error, abstained, note)


def _oracle(result: DomainResult) -> Cell:
    best = min(result.adapters, key=lambda domain: sum(result.adapters[domain]["nll"]))
    return _cell(result.adapters[best], result.base, note=best)


def beating(results: Sequence[DomainResult]) -> dict[str, tuple[int, int]]:
    """By novel domain: adapters with a lower NLL than the base, and those lower by two standard errors."""
    found = {}
    for one in results:
        cells = [_cell(score, one.base) for score in one.adapters.values()]
        lower = [cell for cell in cells if cell.difference < 0]
        found[one.name] = (len(lower), sum(cell.difference < -2 * cell.standard_error for cell in lower))
    return found


def printed(results: Sequence[DomainResult]) -> str:
    """The table for people: perplexities with averages, then differences, then how many adapters help."""
    rows, names = rows_of(results), [one.name for one in results]
    short = [name[:12] for name in names]
    perplexities = [
        (row.name, *(_shown(row.cells[name]) for name in names), f"{row.arithmetic:.2f}", f"{row.geometric:.2f}")
        for row in rows
    ]
    differences = [
        (row.name, *(f"{row.cells[n].difference:+.3f}±{row.cells[n].standard_error:.3f}" for n in names))
        for row in rows[1:]
    ]
    count = len(results[0].adapters)
    helped = [
        (name, f"{lower} of {count}", f"{clearly} of {count}") for name, (lower, clearly) in beating(results).items()
    ]
    return "\n\n".join(
        (
            "Perplexity on test text (* = abstained: the base answers)\n"
            + columns(("", *short, "arith. mean", "geom. mean"), perplexities),
            "Mean NLL per token against the base, ± paired standard error (negative is better)\n"
            + columns(("", *short), differences),
            "Single adapters that beat the base on test text\n"
            + columns(("", "lower NLL", "by two standard errors"), helped),
        )
    )


def _shown(cell: Cell) -> str:
    return f"{cell.perplexity:.2f}" + ("*" if cell.abstained else "")


def figures_of(results: Sequence[DomainResult]) -> dict[str, dict[str, Any]]:
    """The averages of every row as figures of a result file; none of them has a goal."""
    figures = {}
    for row in rows_of(results):
        key = "".join(c if c.isalnum() else "_" for c in row.name.lower()).replace("__", "_").strip("_")
        for kind, value in (("arithmetic", row.arithmetic), ("geometric", row.geometric)):
            figures[f"{key}_{kind}"] = {"value": value, "goal": None, "unit": "perplexity", "repeats": [value]}
    return figures


def body_of(results: Sequence[DomainResult]) -> list[dict[str, Any]]:
    """One entry a row and novel domain, and one a domain for the adapters that beat the base."""
    entries: list[dict[str, Any]] = [
        {"row": row.name, "domain": name, **asdict(cell)}
        for row in rows_of(results)
        for name, cell in row.cells.items()
    ]
    for name, (lower, clearly) in beating(results).items():
        entries.append({"row": "adapters that beat the base", "domain": name, "lower": lower, "by_two_errors": clearly})
    return entries
