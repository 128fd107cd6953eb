"""Output of verbs: data on stdout, messages and progress on stderr, JSON on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich import progress as rich
from rich.console import Console, RenderableType
from rich.text import Text

from adaptersoup.tables import is_harmless, table_width
from registry.progress import Progress, silent


def talk(text: str) -> None:
    """Print lines for the user on stderr, without control characters."""
    typer.echo(harmless(text), err=True)


def data(text: str) -> None:
    """Print lines on stdout; without control characters if that is a terminal."""
    typer.echo(harmless(text) if sys.stdout.isatty() else text)


def write(text: str) -> None:
    """Write text to stdout at once, without a line end; without control characters if that is a terminal."""
    typer.echo(harmless(text) if sys.stdout.isatty() else text, nl=False)
    sys.stdout.flush()


def as_json(value: Any, *, lines: bool = False) -> None:
    """Print a JSON document on stdout, on one line with `lines`; control characters are escaped."""
    text = json.dumps(value, indent=None if lines else 2, ensure_ascii=False)
    typer.echo("".join(c if is_harmless(c) or c == "\n" else json.dumps(c)[1:-1] for c in text))


def answer(value: Any, *lines: str, json: bool, note: str = "") -> None:
    """Print the result of a verb: `value` as a JSON document, else the lines, and `note` on stderr."""
    if json:
        as_json(value)
        return
    for line in lines:
        data(line)
    if note:
        talk(note)


def harmless(text: str) -> str:
    """Text with control characters other than line ends and tabs replaced by `?`, safe for a terminal."""
    return "".join(c if is_harmless(c) or c in "\n\t" else "?" for c in text.replace("\r\n", "\n"))


def data_width() -> int | None:
    """The width of a table on stdout; None, without a limit, if that is not a terminal."""
    return table_width() if sys.stdout.isatty() else None


def is_terminal() -> bool:
    """Return True if stderr is a terminal."""
    return sys.stderr.isatty()


@contextmanager
def progress_bar(description: str, *, in_bytes: bool = False) -> Iterator[Progress]:
    """A progress bar on stderr if that is a terminal, else nothing; call it with (done, total, message)."""
    if not is_terminal():
        yield silent
        return
    with bar_on(Console(stderr=True), description, in_bytes=in_bytes) as report:
        yield report


@contextmanager
def bar_on(console: Console, description: str, *, in_bytes: bool = False) -> Iterator[Progress]:
    """A progress bar on a terminal, with the latest message on the line below; both are erased when it ends.

    With `in_bytes` it shows the bytes per second and the remaining time.
    """
    text = rich.TextColumn("{task.description}", markup=False)
    counts: tuple[rich.ProgressColumn, ...] = (rich.MofNCompleteColumn(), rich.TimeElapsedColumn())
    if in_bytes:
        counts = (rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    with _MessageBar(text, rich.BarColumn(), *counts, console=console, transient=True) as bar:
        bar.add_task(description, total=None)
        yield bar.report


class _MessageBar(rich.Progress):
    """A progress bar of one task, with a message on the line below."""

    message = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """The bar, and the message if there is one."""
        yield self.make_tasks_table(self.tasks)
        if self.message:
            yield Text(f"  {self.message}", style="dim", no_wrap=True, overflow="ellipsis")

    def report(self, done: int, total: int, message: str) -> None:
        """Show the progress of the task."""
        self.message = message
        self.update(self.task_ids[0], completed=done, total=total or None)
