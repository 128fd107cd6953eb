"""How verbs speak: data on stdout, talk and progress on stderr, JSON when asked."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich import progress as rich
from rich.console import Console, RenderableType
from rich.text import Text

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


def one_line(text: str) -> str:
    """Text of others as a line that stays one: what is no printable character is shown as `?`.

    A terminal acts on control characters, and some of Unicode's turn the order of letters around.
    """
    return "".join(c if c.isprintable() else "?" for c in text)


def harmless(text: str) -> str:
    """Text of several lines for a terminal, with tabs; any other character that does not print is shown as `?`."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


WIDTH = 100
"""Columns that a table may take where no terminal says how many; what is wider is broken at spaces."""
BREAKING = 12
"""What a column keeps where its words are broken, as long as that is enough."""


def table_width() -> int:
    """Columns of the terminal, or of the variable COLUMNS."""
    return max(40, shutil.get_terminal_size((WIDTH, 24)).columns)


def data_width() -> int | None:
    """What a table on stdout may take: None, a row a line, where a file or the next program reads it."""
    return table_width() if sys.stdout.isatty() else None


def columns(
    header: Sequence[str], rows: Sequence[Sequence[object]], *, within: int | None = None, spare: Sequence[str] = ()
) -> str:
    """A table as aligned text; numbers stand to the right, control characters of foreign text are shown as `?`.

    Where `within` is given, the widest columns go on in lines below until all fit, as far as a character each is left;
    before a word is broken, the columns called `spare` are left out, the first of them first.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    table = [[name.upper() for name in header], *cells]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    if within is not None:
        words = [max(len(word) for row in table for word in row[i].split() or [""]) for i in range(len(header))]
        room = within - 2 * (len(widths) - 1)
        if spare and sum(words) > room:
            kept = [i for i, name in enumerate(header) if name != spare[0]]
            left = [[row[i] for i in kept] for row in rows]
            return columns([header[i] for i in kept], left, within=within, spare=spare[1:])
        widths = _narrowed(widths, words, room)
    right = [bool(rows) and all(_is_number(row[i]) or row[i] is None for row in rows) for i in range(len(header))]

    def lines(row: Sequence[str]) -> Iterator[str]:
        parts = [_wrapped(cell, max(1, width)) or [""] for cell, width in zip(row, widths, strict=True)]
        for line in itertools.zip_longest(*parts, fillvalue=""):
            yield "  ".join(
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(line, widths, right, strict=True)
            ).rstrip()

    return "\n".join(line for row in table for line in lines(row))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _narrowed(widths: Sequence[int], words: Sequence[int], room: int) -> list[int]:
    """Widths that fit into `room`, taken from the widest first; words are only broken where nothing else is left."""
    found = list(widths)
    for least in (words, [BREAKING] * len(found), [1] * len(found)):
        while sum(found) > room:
            wide = [i for i, width in enumerate(found) if width > least[i]]
            if not wide:
                break
            found[max(wide, key=found.__getitem__)] -= 1
    return found


def fields(pairs: Sequence[tuple[str, object]]) -> str:
    """Names and values, one a line; values that are None or empty are left out, long ones go on below."""
    shown = [(name, _cell(value)) for name, value in pairs if value not in (None, "", [], {}, ())]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(line for name, value in shown for line in _field(name.ljust(width), value))


def _field(name: str, value: str) -> list[str]:
    indent = " " * (len(name) + 2)
    return (
        [f"{name}  {value}"]
        if len(name) + len(value) + 2 <= table_width()
        else textwrap.wrap(
            f"{name}  {value}", table_width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    )


def _wrapped(cell: str, width: int) -> list[str]:
    return [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False)


def spelt(name: str) -> str:
    """The name of a field as people write it."""
    return name.replace("_", " ").replace("held out", "held-out")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"
    if isinstance(value, list | tuple):
        return ", ".join(_cell(part) for part in value)
    if isinstance(value, dict):
        return ", ".join(f"{_cell(str(key))}={_cell(part)}" for key, part in value.items())
    return one_line(str(value))


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
