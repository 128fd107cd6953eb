"""The progress of trainings: a bar or a table on a terminal, else a line on stderr for each evaluation.

Used by `soup train` and `soup train sweep`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from adaptersoup.cli.output import is_terminal, progress_bar, talk
from registry.progress import Progress
from training.hyperparameters import Hyperparameters


class EvaluationLines:
    """Prints a line for each evaluation of one or several trainings, with their names if there are several."""

    def __init__(self, recipe: Hyperparameters) -> None:
        self._evaluated_at = sorted({0, *recipe.evaluated_at()})
        self._printed: dict[str, int] = {}

    def at(self, step: int, steps: int, message: str, *, name: str = "") -> None:
        """Report the step of a training; prints it if there was an evaluation since the last report."""
        if not steps:  # the training waits for a process
            return
        latest = max(at for at in self._evaluated_at if at <= step)
        if self._printed.get(name) != latest:
            self._printed[name] = latest
            talk(f"{name + ': ' if name else ''}step {step} of {steps}: {message}")


@contextmanager
def training_progress(recipe: Hyperparameters) -> Iterator[Progress]:
    """The progress of one training: a bar on a terminal, else a line an evaluation."""
    if not is_terminal():
        yield EvaluationLines(recipe).at
        return
    with progress_bar("training") as report:
        yield report


class Table:
    """The state of each cell of a grid, drawn by rich."""

    def __init__(self, names: Sequence[str], lines: EvaluationLines | None = None) -> None:
        self._lines = lines
        self._rows = {name: ["waiting", "", ""] for name in names}

    def at(self, name: str, step: int, steps: int, message: str) -> None:
        """Report the step of a cell."""
        self._rows[name] = ["training", f"{step}/{steps}" if steps else "", message]
        if self._lines is not None:
            self._lines.at(step, steps, message, name=name)

    def ended(self, name: str, state: str) -> None:
        """Report the final state of a cell; its last message stays."""
        self._rows[name][0] = state

    def __rich__(self) -> Any:
        table = RichTable(box=None, pad_edge=False)
        for header in ("ADAPTER", "STATE", "STEP", ""):
            table.add_column(header, justify="right" if header == "STEP" else "left", no_wrap=True)
        for name, row in self._rows.items():
            table.add_row(*map(Text, (name, *row)))
        return table


@contextmanager
def progress_table(names: Sequence[str], recipe: Hyperparameters) -> Iterator[Table]:
    """The table of these cells, shown on stderr until `with` ends if that is a terminal."""
    if not is_terminal():
        yield Table(names, EvaluationLines(recipe))
        return
    table = Table(names)
    with Live(table, console=Console(stderr=True), transient=True, refresh_per_second=4):
        yield table
