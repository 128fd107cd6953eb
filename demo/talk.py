"""What the demo says on stderr while it works: numbered stages, lines under them, and a bar on a terminal.

Stdout is the table's. Everything goes through one console, so that a line said while a bar is drawn stands above it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from adaptersoup.cli.output import bar_on

Report = Callable[[int, int, str], None]
"""(done, total, message); total 0 where nobody knows."""


class Talk:
    """Counts the stages and keeps the time."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._stage = 0
        self._began = time.monotonic()
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def stage(self, title: str) -> None:
        """Say that the next stage begins."""
        self._stage += 1
        self._console.print(f"[{self._stage}/{self._stages}] {title}  ({self.seconds:.0f} s)", style="bold")

    def line(self, text: str) -> None:
        """Print a line under the stage."""
        self._console.print(f"      {text}")

    @contextmanager
    def bar(self, what: str) -> Iterator[Report]:
        """A bar while one piece of work goes on, moved by the report that is given; none where there is no terminal."""
        with bar_on(self._console, f"      {what}") as report:
            yield report
