"""The header If-Match of routes that change something: the etag of the state to change."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

IfMatch = Annotated[str | None, Header(description="The etag the change is meant for.")]


def etag_of(header: str | None) -> str | None:
    """Return the etag of an If-Match header, None for `*`, which matches any."""
    return None if header is None or header.strip() == "*" else header.strip().removeprefix("W/").strip('"')
