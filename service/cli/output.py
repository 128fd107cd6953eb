"""How verbs speak: data on stdout, talk and progress on stderr, JSON when asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from registry.progress import Progress, silent

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def talk(text: str) -> None:
    """A line for the person, on stderr."""
    typer.echo(text, err=True)


def data(text: str) -> None:
    """A line for the person or the next program, on stdout."""
    typer.echo(text)


def write(text: str) -> None:
    """Text on stdout as it comes, without a new line."""
    typer.echo(text, nl=False)
    sys.stdout.flush()


def as_json(value: Any, *, lines: bool = False) -> None:
    """One JSON document on stdout; with `lines` on one line, for streams."""
    typer.echo(json.dumps(value, indent=None if lines else 2, ensure_ascii=False))


def columns(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table as aligned text; numbers stand to the right, control characters of foreign text are shown as `?`."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    right = [bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
             for i in range(len(header))]  # fmt: skip

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()

    return "\n".join(line(row) for row in [[name.upper() for name in header], *cells])


def fields(pairs: Sequence[tuple[str, object]]) -> str:
    """Names and values, one a line; values that are None or empty are left out."""
    shown = [(name, _cell(value)) for name, value in pairs if value not in (None, "", [], {}, ())]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in shown)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(part) for part in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={_cell(part)}" for key, part in value.items())
    return "".join(c if c.isprintable() else "?" for c in str(value))


@contextmanager
def progress_bar(description: str) -> Iterator[Progress]:
    """A progress bar on stderr where that is a terminal, else nothing; give it (done, total, message)."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console

    with bar_on(Console(stderr=True), description) as report:
        yield report


@contextmanager
def bar_on(console: Console, description: str) -> Iterator[Progress]:
    """A progress bar on a terminal, with the latest message on the line below; both are gone when it ends."""
    from rich import progress as rich
    from rich.text import Text

    said = ""

    class TwoLines(rich.Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            if said:
                yield Text(f"  {said}", style="dim", no_wrap=True, overflow="ellipsis")

    text = rich.TextColumn("{task.description}", markup=False)
    shown = (text, rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn())
    with TwoLines(*shown, console=console, transient=True) as bar:
        task = bar.add_task(description, total=None)

        def report(done: int, total: int, message: str) -> None:
            nonlocal said
            said = message
            bar.update(task, completed=done, total=total or None)

        yield report
