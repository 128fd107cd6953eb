"""Stream rows as CSV, page by page, with cells escaped that a spreadsheet would compute as formulas."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse

from registry.catalogue.rows import Page

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}
"""`responses` of a route that can answer with CSV."""
Row = TypeVar("Row")


def csv_file(
    name: str, columns: Sequence[str], page: Callable[[str | None], Page[Row]], cells: Callable[[Row], Iterable[object]]
) -> StreamingResponse:
    """Return a download of all pages; `page` reads the page at a cursor, `cells` converts a row.

    The first page is read before the response starts, so that an error of the filters or the database has its status.
    """
    first = page(None)

    def lines() -> Iterator[str]:
        yield csv_lines([columns])
        current = first
        while True:
            yield csv_lines(map(cells, current.rows))
            if current.next_cursor is None:
                return
            current = page(current.next_cursor)

    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(lines(), media_type="text/csv", headers=headers)


def csv_lines(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as lines of CSV; None becomes an empty cell, and numbers stay numbers."""
    text = io.StringIO()
    csv.writer(text).writerows([value if _is_number(value) else cell(str(value)) for value in row] for row in rows)
    return text.getvalue()


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def cell(text: str) -> str:
    """Return a text with an apostrophe in front if a spreadsheet would compute it as a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text
