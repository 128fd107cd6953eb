"""Common code of the benchmarks: options, interleaved repeated measurements, and results as two tables.

`demo.results` defines the format of the results file.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from demo.results import Figure, Row, command_line, update, write


def repeated(
    repeats: Sequence[float], unit: str, *, goal: float | None = None, stretch: float | None = None, note: str = ""
) -> Figure:
    """The figure of repeated measurements: their median. The note has the `stretch` goal."""
    further = [] if stretch is None else [f"stretch {stretch:g}"]
    return Figure(median(repeats), unit, goal, tuple(repeats), "; ".join([*([note] if note else []), *further]))


@dataclass
class Result:
    """The result of a benchmark; `rows` has all cells behind the figures."""

    figures: dict[str, Figure] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def print(self) -> None:
        """The rows and the figures as two tables."""
        print(table(self.rows))
        print()
        rows = [
            {"figure": name, "value": figure.value, "unit": figure.unit, "goal": figure.goal}
            for name, figure in self.figures.items()
        ]
        print(table(rows))

    def finish(self, out: Path | None, *, part_name: str | None = None) -> None:
        """Print, and write to `out` where there is one, whose name is the result's.

        In a file that exists, only the results of the part `part_name` are replaced, and its figures record their date.
        """
        self.print()
        if out is not None:
            figures = {name: figure.as_json() for name, figure in self.figures.items()}
            if part_name is not None and out.exists():
                update(out, figures=figures, rows=self.rows, part_name=part_name)
            else:
                write(out, name=out.stem, command=command(), figures=figures, rows=self.rows)
            print(f"\nwritten to {out}")


Part = Callable[[Result, argparse.Namespace], None]
"""Measures a part of a benchmark with the options of the command line."""


def run_parts(
    parser: argparse.ArgumentParser, measures: Mapping[str, Part], arguments: Sequence[str] | None = None
) -> None:
    """Run all parts, or those that `--only` names, and write the file after each.

    Named parts replace their results in it. `arguments` are by default those of this program.
    """
    parser.add_argument("--only", nargs="+", choices=tuple(measures), help="these parts; the others stay in the file")
    parsed = parser.parse_args(arguments)
    result = Result()
    for name, measure in measures.items():
        if parsed.only is None:
            measure(result, parsed)
            result.finish(parsed.out)
        elif name in parsed.only:
            alone = Result()
            measure(alone, parsed)
            alone.finish(parsed.out, part_name=name)


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the results file here")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of each measurement; the median counts")
    return parser


def command() -> str:
    """The command line of this program, so that it can be repeated."""
    module = sys.modules["__main__"].__spec__
    name = module.name.removesuffix(".__main__") if module is not None else sys.argv[0]
    return command_line(name, sys.argv[1:])


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call; garbage of earlier ones is collected before."""
    gc.collect()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    warm: bool = False,
    before_repeat: Callable[[int], None] = lambda _repeat: None,
) -> dict[str, list[float]]:
    """Seconds of each call, `repeats` times, in turn, so that what slows the machine slows all of them.

    Each runs once before, unless they are `warm`. `before_repeat` is called with the number of each repeat, from 0 on.
    All compute in this thread: workers that torch keeps for another one would slow them.
    """
    for call in () if warm else calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats):
        before_repeat(repeat)
        for name, call in calls.items():
            times[name].append(seconds(call))
    return times


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Repeat by repeat: one over the other."""
    return [numerator / denominator for numerator, denominator in zip(above, below, strict=True)]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned columns; the first row names them."""
    if not rows:
        return ""
    heads = list(rows[0])
    cells = [heads, *([_cell(row.get(head)) for head in heads] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
