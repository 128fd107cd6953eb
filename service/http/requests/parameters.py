"""Parameters that many routes take: If-Match where something is changed, `limit` and `cursor` of a page of a list."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Query

from registry.catalogue.rows import Etags
from registry.errors import InvalidParameter
from service.services import Services


def _expected_etags(
    if_match: Annotated[
        str | None, Header(description="The etag the change is meant for, a list of etags, or `*` for any.")
    ] = None,
) -> Etags:
    """Return the etags of an If-Match header."""
    if if_match is None:
        return None
    return frozenset(etag.strip().removeprefix("W/").strip('"') for etag in if_match.split(","))


IfMatch = Annotated[Etags, Depends(_expected_etags)]
Limit = Annotated[int | None, Query(ge=1, description="Rows of this page.")]
Cursor = Annotated[str | None, Query(max_length=500, description="`next_cursor` of the page before.")]


def page_size(limit: int | None, services: Services) -> int:
    """Return the number of rows of a page; raises InvalidParameter beyond the setting."""
    most = services.settings.max_page_size
    if limit is not None and limit > most:
        raise InvalidParameter(f"A page has at most {most} rows here; follow next_cursor for more.", param="limit")
    return limit or services.settings.page_size
