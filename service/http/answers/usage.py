"""Usage as CSV, page by page, for spreadsheets, which take a cell that begins like a formula for one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from registry.catalogue.rows import UsageRow
from registry.catalogue.usage import GROUPS, NUMBERS

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def header_line(by: Sequence[str]) -> str:
    """The names of the columns."""
    return _lines([_columns(by)])


def usage_lines(rows: Iterable[UsageRow], by: Sequence[str]) -> str:
    """Rows as lines of CSV."""
    return _lines([[cell(str(getattr(row, name))) for name in _columns(by)] for row in rows])


def cell(text: str) -> str:
    """A cell that no spreadsheet computes: with an apostrophe before what would begin a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def _columns(by: Sequence[str]) -> list[str]:
    return [*(name for name in GROUPS if name in by), *NUMBERS]


def _lines(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()
