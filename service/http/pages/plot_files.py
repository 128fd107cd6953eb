"""Plots of a page as SVG files, in the theme that the query names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from fastapi import Query, Response
from pydantic import Field

from plots.style import Plot, ThemeName, to_svg
from registry.errors import NotFound

ThemeQuery = Annotated[ThemeName, Query(description="Colours for a light or a dark page.")]
PlotNumber = Annotated[float, Field(ge=-1e9, le=1e9)]
"""A number of a query that is drawn, limited because axes near the largest float cannot be drawn."""
Drawings = Mapping[str, Callable[[], Plot]]
"""Functions that draw the plots of a page, by name. Pages that only link the plots do not call them."""
HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'", "cache-control": "no-store"}
"""For an SVG that is opened by itself: it may use its inline styles, and run or load nothing."""


def svg_response(drawings: Drawings, name: str = "plot") -> Response:
    """The plot of this name as an SVG file; raises NotFound."""
    if name not in drawings:
        raise NotFound(f"There is no plot of this name here; there is {', '.join(drawings) or 'none'}.")
    return Response(to_svg(drawings[name]()), media_type="image/svg+xml", headers=HEADERS)
