"""Tables of a page: rows that are shown, and given as CSV by the same name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import Response

from registry.errors import NotFound
from service.http.files.csv_lines import csv_lines

Cell = str | float | int | None
Kind = Literal["text", "model", "number", "difference", "share"]
"""How a column is read: words, the name of a model, a number, a difference with its sign, a share of 1."""


@dataclass(frozen=True)
class Column:
    """One column."""

    name: str
    kind: Kind = "text"

    @property
    def is_number(self) -> bool:
        """Whether its cells stand below each other by their digits."""
        return self.kind not in {"text", "model"}


@dataclass(frozen=True)
class Table:
    """Rows under columns; `name` is what it is called in the address of its CSV."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def csv_of(tables: Sequence[Table], name: str) -> Response:
    """The table of a name as a file; raises NotFound."""
    for table in tables:
        if table.name == name:
            text = csv_lines([[column.name for column in table.columns], *table.rows])
            headers = {"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"}
            return Response(text, media_type="text/csv", headers=headers)
    there = ", ".join(table.name for table in tables) or "none"
    raise NotFound(f"There is no table of this name here; there is {there}.")
