"""Tables and plots of a page, each with a file under its name: CSV for a table, SVG for a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Query, Response
from pydantic import Field

from plots.style import Plot, ThemeName, to_svg
from registry.errors import NotFound
from service.http.files.csv_lines import csv_lines

Cell = str | float | int | None
Kind = Literal["text", "model", "number", "weight", "difference", "share", "change"]
"""Formats of cells: text, a link to a model, a number, a number with a bar or with its sign, a percentage, or a
percentage with its sign."""
ThemeQuery = Annotated[ThemeName, Query(description="Colours for a light or a dark page.")]
PlotNumber = Annotated[float, Field(ge=-1e9, le=1e9)]
"""A number of a query that is drawn, limited because axes near the largest float cannot be drawn."""
Drawings = Mapping[str, Callable[[], Plot]]
"""Functions that draw the plots of a page, by name. Pages that only link the plots do not call them."""
SVG_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'", "cache-control": "no-store"}
"""For an SVG that is opened by itself: it may use its inline styles, and run or load nothing."""


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


def svg_response(drawings: Drawings, name: str = "plot") -> Response:
    """The plot of this name as an SVG file; raises NotFound."""
    if name not in drawings:
        raise NotFound(f"There is no plot of this name here; there is {', '.join(drawings) or 'none'}.")
    return Response(to_svg(drawings[name]()), media_type="image/svg+xml", headers=SVG_HEADERS)
