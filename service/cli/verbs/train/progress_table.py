"""The table of a grid's progress: a line a cell on a terminal, kept up to date, and nothing elsewhere.

Used by `soup train sweep`. rich is imported for a terminal only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


class Table:
    """What is known of each cell; `__rich__` draws it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._rows = {name: ["waiting", "", ""] for name in names}

    def at(self, name: str, step: int, steps: int, message: str) -> None:
        """A cell is at a step."""
        self._rows[name] = ["training", f"{step}/{steps}" if steps else "", message]

    def ended(self, name: str, state: str) -> None:
        """A cell is done; what it came to stays."""
        self._rows[name][0] = state

    def lines(self) -> list[tuple[str, ...]]:
        """(cell, state, step, loss), in the order of the grid."""
        return [(name, *row) for name, row in self._rows.items()]

    def __rich__(self) -> Any:
        from rich.table import Table as Drawn
        from rich.text import Text

        drawn = Drawn(box=None, pad_edge=False)
        for header in ("ADAPTER", "STATE", "STEP", ""):
            drawn.add_column(header, justify="right" if header == "STEP" else "left", no_wrap=True)
        for line in self.lines():
            drawn.add_row(*(Text(part) for part in line))
        return drawn


@contextmanager
def progress_table(names: Sequence[str]) -> Iterator[Table]:
    """The table of these cells, shown on stderr while open where that is a terminal."""
    table = Table(names)
    if not sys.stderr.isatty():
        yield table
        return
    from rich.console import Console
    from rich.live import Live

    with Live(table, console=Console(stderr=True), transient=True, refresh_per_second=4):
        yield table
