"""Text tables: aligned columns and fields that fit a terminal.

Used by the command line and by results that print themselves. Control characters of foreign text are shown as `?`.
"""

from __future__ import annotations

import itertools
import shutil
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence

DEFAULT_WIDTH = 100
"""Characters in a line of a table if no terminal says how many."""
MIN_BROKEN_WIDTH = 12
"""Narrowest column whose words are broken, unless the table fits in no other way."""

BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the order of letters around. Others without a glyph, such as joiners, belong to words."""


def is_harmless(character: str) -> bool:
    """Return False for control characters, line separators, BIDI_CONTROLS, and what is no character at all."""
    return unicodedata.category(character) not in ("Cc", "Cs", "Cn", "Zl", "Zp") and character not in BIDI_CONTROLS


def one_line(text: str) -> str:
    """Foreign text as a single line, with characters on which a terminal acts shown as `?`."""
    return "".join(c if is_harmless(c) else "?" for c in text)


def table_width() -> int:
    """Width of the terminal in characters, or the value of the variable COLUMNS; at least 40."""
    return max(40, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns)


def columns(
    header: Sequence[str], rows: Sequence[Sequence[object]], *, within: int | None = None, spare: Sequence[str] = ()
) -> str:
    """A table as aligned text: numbers to the right, control characters of foreign text as `?`.

    `within` is the most characters in a line: the widest columns are wrapped until all fit, down to one character each.
    Before a word is broken, columns named in `spare` are dropped, in that order.
    """
    cells = [[cell_text(value) for value in row] for row in rows]
    table = [[name.upper() for name in header], *cells]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    if within is not None:
        words = [max(len(word) for row in table for word in row[i].split() or [""]) for i in range(len(header))]
        room = within - 2 * (len(widths) - 1)
        if spare and sum(words) > room:
            indices = [i for i, name in enumerate(header) if name != spare[0]]
            narrower = [[row[i] for i in indices] for row in rows]
            return columns([header[i] for i in indices], narrower, within=within, spare=spare[1:])
        widths = _fit_widths(widths, words, room)
    is_right = [bool(rows) and all(_is_number(row[i]) or row[i] is None for row in rows) for i in range(len(header))]
    return "\n".join(line for row in table for line in _row_lines(row, widths, is_right))


def _row_lines(row: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> Iterator[str]:
    """The lines of one row of a table; cells wider than their column continue on further lines."""
    wrapped = [_wrapped(cell, max(1, width)) or [""] for cell, width in zip(row, widths, strict=True)]
    for line in itertools.zip_longest(*wrapped, fillvalue=""):
        yield "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, is_right, strict=True)
        ).rstrip()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fit_widths(widths: Sequence[int], words: Sequence[int], room: int) -> list[int]:
    """Widths whose sum is at most `room`, taken from the widest columns first.

    `words` are the lengths of each column's longest word, below which a column is narrowed last.
    """
    fitted = list(widths)
    for least in (words, [MIN_BROKEN_WIDTH] * len(fitted), [1] * len(fitted)):
        while sum(fitted) > room:
            wide = [i for i, width in enumerate(fitted) if width > least[i]]
            if not wide:
                break
            fitted[max(wide, key=fitted.__getitem__)] -= 1
    return fitted


def fields(pairs: Sequence[tuple[str, object]]) -> str:
    """Names and values, one a line and long ones wrapped; values that are None or empty are skipped."""
    texts = [(name, cell_text(value)) for name, value in pairs if value not in (None, "", [], {}, ())]
    width = max((len(name) for name, _ in texts), default=0)
    return "\n".join(line for name, text in texts for line in _field_lines(name.ljust(width), text))


def _field_lines(name: str, value: str) -> list[str]:
    line = f"{name}  {value}"
    if len(line) <= table_width():
        return [line]
    indent = " " * (len(name) + 2)
    return textwrap.wrap(line, table_width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _wrapped(cell: str, width: int) -> list[str]:
    return [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False)


def spelt(name: str) -> str:
    """A field's name in words, without underscores."""
    return name.replace("_", " ").replace("held out", "held-out")


def cell_text(value: object) -> str:
    """A value as the text of a cell, with control characters of foreign text as `?`."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"
    if isinstance(value, list | tuple):
        return ", ".join(map(cell_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{cell_text(str(key))}={cell_text(item)}" for key, item in value.items())
    return one_line(str(value))
