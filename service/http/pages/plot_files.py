"""Plots of a page as SVG files, each at a URL of its own, in the theme that its query names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from fastapi import Query, Response
from pydantic import Field

from plots.style import Plot, ThemeName, to_svg
from registry.errors import NotFound

ThemeQuery = Annotated[ThemeName, Query(description="Colours for a light or a dark page.")]
PlotNumber = Annotated[float, Field(ge=-1e9, le=1e9)]
"""A number of a query that is drawn: axes are not made for ranges near the largest float."""
Drawings = Mapping[str, Callable[[], Plot]]
"""What draws each plot, by its name: a page needs the names alone."""
HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'", "cache-control": "no-store"}
"""For whoever opens the file by itself: it has styles of its own, and nothing else runs or loads."""


def svg_response(drawings: Drawings, name: str = "plot") -> Response:
    """The plot of this name as a file; raises NotFound."""
    if name not in drawings:
        raise NotFound(f"There is no plot of this name here; there is {', '.join(drawings) or 'none'}.")
    return Response(to_svg(drawings[name]()), media_type="image/svg+xml", headers=HEADERS)
