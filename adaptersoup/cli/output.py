"""How verbs speak: data on stdout, talk and progress on stderr, JSON when asked."""

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

from adaptersoup.tables import table_width
from registry.progress import Progress, silent


def talk(text: str) -> None:
    """Lines for the person, on stderr."""
    typer.echo(harmless(text), err=True)


def data(text: str) -> None:
    """Lines for the person or the next program, on stdout; only a terminal's are made harmless."""
    typer.echo(harmless(text) if sys.stdout.isatty() else text)


def write(text: str) -> None:
    """Text on stdout as it comes, without a new line; only a terminal's is made harmless."""
    typer.echo(harmless(text) if sys.stdout.isatty() else text, nl=False)
    sys.stdout.flush()


def as_json(value: Any, *, lines: bool = False) -> None:
    """One JSON document on stdout; with `lines` on one line, for streams. Only characters that print stand in it."""
    text = json.dumps(value, indent=None if lines else 2, ensure_ascii=False)
    typer.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text))


def harmless(text: str) -> str:
    """Text of several lines for a terminal, with tabs; any other character that does not print is shown as `?`."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def data_width() -> int | None:
    """What a table on stdout may take: None, a row a line, where a file or the next program reads it."""
    return table_width() if sys.stdout.isatty() else None


def to_a_person() -> bool:
    """Whether talk goes to a terminal."""
    return sys.stderr.isatty()


@contextmanager
def progress_bar(description: str, *, in_bytes: bool = False) -> Iterator[Progress]:
    """A progress bar on stderr where that is a terminal, else nothing; give it (done, total, message)."""
    if not to_a_person():
        yield silent
        return
    with bar_on(Console(stderr=True), description, in_bytes=in_bytes) as report:
        yield report


@contextmanager
def bar_on(console: Console, description: str, *, in_bytes: bool = False) -> Iterator[Progress]:
    """A progress bar on a terminal, with the latest message on the line below; both are gone when it ends.

    One that counts bytes shows how many come in a second, and the time that is left.
    """
    said = ""

    class TwoLines(rich.Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            if said:
                yield Text(f"  {said}", style="dim", no_wrap=True, overflow="ellipsis")

    text = rich.TextColumn("{task.description}", markup=False)
    counted: tuple[rich.ProgressColumn, ...] = (rich.MofNCompleteColumn(), rich.TimeElapsedColumn())
    if in_bytes:
        counted = (rich.DownloadColumn(), rich.TransferSpeedColumn(), rich.TimeRemainingColumn())
    shown = (text, rich.BarColumn(), *counted)
    with TwoLines(*shown, console=console, transient=True) as bar:
        task = bar.add_task(description, total=None)

        def report(done: int, total: int, message: str) -> None:
            nonlocal said
            said = message
            bar.update(task, completed=done, total=total or None)

        yield report
