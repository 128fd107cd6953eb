"""If-Match: the etag that a change is meant for, as the routes that change something take it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header

IfMatch = Annotated[str | None, Header(description="The etag the change is meant for.")]


def etag_of(header: str | None) -> str | None:
    """The etag of an If-Match header; `*` is none in particular."""
    return None if header is None or header.strip() == "*" else header.strip().removeprefix("W/").strip('"')
