"""The demo's progress on stderr: numbered stages, lines under them, and a progress bar on a terminal.

Stdout is for the table. All output uses one console, so that a line printed while a bar is shown appears above it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from adaptersoup.cli.output import bar_on

Report = Callable[[int, int, str], None]
"""(done, total, message); a total of 0 is unknown."""


class Talk:
    """Counts the stages and measures the time."""

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
        """Print the next stage."""
        self._stage += 1
        self._console.print(f"[{self._stage}/{self._stages}] {title}  ({self.seconds:.0f} s)", style="bold")

    def line(self, text: str) -> None:
        """Print a line under the stage."""
        self._console.print(f"      {text}")

    @contextmanager
    def bar(self, label: str) -> Iterator[Report]:
        """Show a progress bar while the context is open, updated by the function it yields; none without a terminal."""
        with bar_on(self._console, f"      {label}") as report:
            yield report
