"""Rows as CSV, page by page, for spreadsheets, which take a cell that begins like a formula for one."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse

from registry.catalogue.rows import Page

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}
"""What a route that can answer so says of it."""
Row = TypeVar("Row")


def csv_file(
    name: str, columns: Sequence[str], page: Callable[[str | None], Page[Row]], cells: Callable[[Row], Iterable[object]]
) -> StreamingResponse:
    """All pages as a file of that name, each read by itself, from the cursor that the one before it gave."""

    def lines() -> Iterator[str]:
        yield csv_lines([columns])
        cursor: str | None = None
        while True:
            found = page(cursor)
            yield csv_lines(map(cells, found.rows))
            cursor = found.next_cursor
            if cursor is None:
                return

    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines(), media_type="text/csv", headers=headers)


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    """Rows as lines of CSV; None is an empty cell, and numbers stay numbers."""
    text = io.StringIO()
    csv.writer(text).writerows([value if _is_number(value) else cell(str(value)) for value in row] for row in rows)
    return text.getvalue()


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def cell(text: str) -> str:
    """A cell that no spreadsheet computes: with an apostrophe before what would begin a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
