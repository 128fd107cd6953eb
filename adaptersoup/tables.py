"""Text tables: aligned columns and fields that fit a terminal.

Used by the command line and by the values that print themselves. Control characters of foreign text are shown as `?`.
"""

from __future__ import annotations

import itertools
import shutil
import textwrap
from collections.abc import Iterator, Sequence


def one_line(text: str) -> str:
    """Text of others as a line that stays one: what is no printable character is shown as `?`.

    A terminal acts on control characters, and some of Unicode's turn the order of letters around.
    """
    return "".join(c if c.isprintable() else "?" for c in text)


WIDTH = 100
"""Columns that a table may take where no terminal says how many; what is wider is broken at spaces."""


BREAKING = 12
"""What a column keeps where its words are broken, as long as that is enough."""


def table_width() -> int:
    """Columns of the terminal, or of the variable COLUMNS."""
    return max(40, shutil.get_terminal_size((WIDTH, 24)).columns)


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
