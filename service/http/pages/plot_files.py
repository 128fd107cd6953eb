"""Plots of a page as SVG files, each at a URL of its own, in the theme that its query names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Query, Response

from plots.style import Plot, ThemeName, to_svg
from registry.errors import NotFound

ThemeQuery = Annotated[ThemeName, Query(description="Colours for a light or a dark page.")]
HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'", "cache-control": "no-store"}
"""For whoever opens the file by itself: it has styles of its own, and nothing else runs or loads."""


def svg_response(plots: Mapping[str, Plot], name: str = "plot") -> Response:
    """The plot of this name as a file; raises NotFound."""
    if name not in plots:
        raise NotFound(f"There is no plot of this name here; there is {', '.join(plots) or 'none'}.")
    return Response(to_svg(plots[name]), media_type="image/svg+xml", headers=HEADERS)
