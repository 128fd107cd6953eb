"""What the demo says while it works: numbered stages, and a bar on a terminal or a line now and then elsewhere.

All of it goes to stderr; stdout is the table's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int, str], None]
"""(done, total, message); total 0 where nobody knows."""

LINE_EVERY = 15.0  # seconds between two lines where no bar can be drawn


class Talk:
    """What the demo says on stderr; it counts the stages and keeps the time."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._stage = 0
        self._began = time.monotonic()
        self.terminal = sys.stderr.isatty()

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def stage(self, title: str) -> None:
        """Say that the next stage begins."""
        self._stage += 1
        self.line(f"[{self._stage}/{self._stages}] {title}", mark=True)

    def line(self, text: str, *, mark: bool = False) -> None:
        """Say a line; `mark` makes it stand out on a terminal and adds the time."""
        if mark:
            shown = f"\x1b[1m{text}\x1b[0m" if self.terminal else text
            print(f"{shown}  ({self.seconds:.0f} s)", file=sys.stderr, flush=True)
        else:
            print(f"      {text}" if text else "", file=sys.stderr, flush=True)

    @contextmanager
    def bar(self, what: str) -> Iterator[Report]:
        """A bar while one piece of work goes on, moved by the report that is given."""
        if not self.terminal:
            yield self._lines(what)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        shown = (TextColumn("      {task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
                 TimeElapsedColumn())  # fmt: skip
        with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)

            def report(done: int, total: int, message: str) -> None:
                bar.update(task, completed=done, total=total or None, description=f"{what} {message}".strip())

            yield report

    def _lines(self, what: str) -> Report:
        last = time.monotonic()

        def report(done: int, total: int, message: str) -> None:
            nonlocal last
            if time.monotonic() - last >= LINE_EVERY:
                last = time.monotonic()
                self.line(f"{what}: {done}{f' of {total}' if total else ''} {message}".rstrip())

        return report
