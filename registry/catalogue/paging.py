"""Keyset paging: a page is found by the key of the last row seen, so rows that come or go shift nothing."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Column, Connection, Select

from registry.catalogue.rows import Page
from registry.errors import InvalidParameter

Row = TypeVar("Row")


def now() -> datetime:
    """The present moment, UTC."""
    return datetime.now(UTC)


def page_of(
    connection: Connection, query: Select[Any], key: Column[Any], *, limit: int, cursor: str | None,
    make: Callable[[Any], Row],
) -> Page[Row]:  # fmt: skip
    """At most `limit` rows of `query`, newest (highest `key`) first, after the row `cursor` names."""
    if limit < 1:
        raise InvalidParameter("A page has at least one row.", param="limit")
    if cursor is not None:
        query = query.where(key < _read(cursor))
    found = connection.execute(query.order_by(key.desc()).limit(limit + 1)).mappings().all()
    rows = tuple(make(row) for row in found[:limit])
    more = len(found) > limit
    return Page(rows=rows, next_cursor=_write(found[limit - 1][key.name]) if more else None)


def _write(value: int) -> str:
    return base64.urlsafe_b64encode(f"after:{value}".encode()).decode()


def _read(cursor: str) -> int:
    try:
        word, _, number = base64.urlsafe_b64decode(cursor.encode("ascii")).decode("ascii").partition(":")
        if word == "after" and number.isdigit() and len(number) < 19:
            return int(number)
    except (ValueError, binascii.Error):
        pass
    raise InvalidParameter("This is no cursor of ours; take next_cursor of the page before.", param="cursor")
