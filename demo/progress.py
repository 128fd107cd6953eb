"""What the demo says while it works: numbered stages, and a bar on a terminal or a line now and then elsewhere.

All of it goes to stderr; stdout is the table's. On a terminal everything goes through one console, so that a line said
while a bar is drawn stands above it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from service.cli.output import bar_on

Report = Callable[[int, int, str], None]
"""(done, total, message); total 0 where nobody knows."""

LINE_EVERY = 15.0  # seconds between two lines where no bar can be drawn


class Talk:
    """What the demo says on stderr; it counts the stages and keeps the time."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._stage = 0
        self._began = time.monotonic()
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.terminal = self._console.is_terminal

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def stage(self, title: str) -> None:
        """Say that the next stage begins."""
        self._stage += 1
        self._say(f"[{self._stage}/{self._stages}] {title}", style="bold", after=f"  ({self.seconds:.0f} s)")

    def line(self, text: str) -> None:
        """A line under the stage."""
        self._say(f"      {text}" if text else "")

    def _say(self, text: str, *, style: str = "", after: str = "") -> None:
        if self.terminal:
            self._console.print(Text(text, style=style) + Text(after))
        else:
            print(text + after, file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, what: str) -> Iterator[Report]:
        """A bar while one piece of work goes on, moved by the report that is given."""
        if not self.terminal:
            yield self._lines(what)
            return
        with bar_on(self._console, f"      {what}") as report:
            yield report

    def _lines(self, what: str) -> Report:
        last = time.monotonic()

        def report(done: int, total: int, message: str) -> None:
            nonlocal last
            if time.monotonic() - last >= LINE_EVERY:
                last = time.monotonic()
                self.line(f"{what}: {done}{f' of {total}' if total else ''} {message}".rstrip())

        return report
