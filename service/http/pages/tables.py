"""Tables of a page, shown as HTML and downloaded as CSV under the same name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import Response

from registry.errors import NotFound
from service.http.files.csv_lines import csv_lines

Cell = str | float | int | None
Kind = Literal["text", "model", "number", "difference", "share"]
"""How cells are shown: as text, as a link to a model, as a number, with a sign, or as a percentage."""


@dataclass(frozen=True)
class Column:
    """The heading of a column and how its cells are shown."""

    name: str
    kind: Kind = "text"

    @property
    def is_number(self) -> bool:
        """Return True if its cells are aligned as numbers."""
        return self.kind not in {"text", "model"}


@dataclass(frozen=True)
class Table:
    """Rows under columns; `name` is the name of its CSV file."""

    name: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def csv_response(tables: Sequence[Table], name: str) -> Response:
    """The table of this name as a CSV file; raises NotFound."""
    for table in tables:
        if table.name == name:
            text = csv_lines([[column.name for column in table.columns], *table.rows])
            headers = {"content-disposition": f'attachment; filename="{name}.csv"', "cache-control": "no-store"}
            return Response(text, media_type="text/csv", headers=headers)
    available = ", ".join(table.name for table in tables) or "none"
    raise NotFound(f"There is no table of this name here; there is {available}.")
