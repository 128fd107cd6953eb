"""Rows as CSV, for spreadsheets, which take a cell that begins like a formula for one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    """Rows as lines of CSV; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text).writerows([cell("" if value is None else str(value)) for value in row] for row in rows)
    return text.getvalue()


def cell(text: str) -> str:
    """A cell that no spreadsheet computes: with an apostrophe before what would begin a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
