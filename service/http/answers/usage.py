"""Usage as CSV, page by page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from registry.catalogue.rows import UsageRow
from registry.catalogue.usage import GROUPS, NUMBERS
from service.http.csv_lines import csv_lines


def header_line(by: Sequence[str]) -> str:
    """The names of the columns."""
    return csv_lines([_columns(by)])


def usage_lines(rows: Iterable[UsageRow], by: Sequence[str]) -> str:
    """Rows as lines of CSV."""
    return csv_lines([getattr(row, name) for name in _columns(by)] for row in rows)


def _columns(by: Sequence[str]) -> list[str]:
    return [*(name for name in GROUPS if name in by), *NUMBERS]
