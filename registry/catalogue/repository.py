"""What all repositories of the catalogue share: rows become values, one, all or a page of them.

Paging goes by key: a page is found by the key of the last row seen, so rows that come or go shift nothing.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import BigInteger, Column, ColumnElement, Connection, Select, Table, insert, literal_column, true

from registry.catalogue.rows import Namespaces, Page
from registry.errors import InvalidParameter

Row = TypeVar("Row")
_CLOCKS = {
    "postgresql": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}


def now() -> datetime:
    """The present moment, UTC."""
    return datetime.now(UTC)


def database_clock(connection: Connection) -> ColumnElement[int]:
    """Microseconds since 1970, UTC; it goes on within a transaction. Servers whose own clocks differ agree on it."""
    return literal_column(_CLOCKS[connection.dialect.name], BigInteger)


def seen_by(visible: Namespaces, namespace: Column[Any]) -> ColumnElement[bool]:
    """Whether a row of this namespace is visible."""
    return true() if visible is None else namespace.in_(visible)


def matching(table: Table, **wanted: str | None) -> list[ColumnElement[bool]]:
    """Columns that equal what is wanted of them; None wants nothing."""
    return [table.c[name] == value for name, value in wanted.items() if value is not None]


class Repository(Generic[Row]):
    """Reads and writes the rows of one noun within a transaction; a row is read as a `values` by its column names."""

    values: TypeAdapter[Row]

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _row(self, row: Any) -> Row:
        return self.values.validate_python(dict(row))

    def _insert(self, table: Table, **values: Any) -> None:
        self._connection.execute(insert(table).values(**values))

    def _one(self, query: Select[Any]) -> Row | None:
        row = self._connection.execute(query).mappings().first()
        return None if row is None else self._row(row)

    def _all(self, query: Select[Any]) -> list[Row]:
        return [self._row(row) for row in self._connection.execute(query).mappings()]

    def _page(self, query: Select[Any], key: ColumnElement[Any], *, limit: int, cursor: str | None) -> Page[Row]:
        """At most `limit` rows of `query`, newest (highest `key`) first, after the row `cursor` names."""
        return self._page_of(newest(query, key, limit=limit, cursor=cursor), limit=limit)

    def _page_of(self, query: Select[Any], *, limit: int) -> Page[Row]:
        """The page that a query from `newest` leads to."""
        found = self._connection.execute(query).mappings().all()
        rows = tuple(self._row(row) for row in found[:limit])
        return Page(
            rows=rows, next_cursor=write_cursor(str(found[limit - 1]["page_key"])) if len(found) > limit else None
        )


def newest(query: Select[Any], key: ColumnElement[Any], *, limit: int, cursor: str | None) -> Select[Any]:
    """`query` from the row after `cursor` on, highest `key` first, with the key as `page_key`.

    It has one row more than a page, which says that there is a next one.
    """
    if limit < 1:
        raise InvalidParameter("A page has at least one row.", param="limit")
    if cursor is not None:
        query = query.where(key < _number(cursor))
    return query.add_columns(key.label("page_key")).order_by(key.desc()).limit(limit + 1)


def write_cursor(last: str) -> str:
    """The cursor behind the row with this key."""
    return base64.urlsafe_b64encode(f"after:{last}".encode()).decode()


def read_cursor(cursor: str) -> str:
    """The key that a cursor was written of, printable ASCII; raises InvalidParameter."""
    try:
        word, _, last = base64.urlsafe_b64decode(cursor.encode("ascii")).decode("ascii").partition(":")
        if word == "after" and last.isprintable():
            return last
    except (ValueError, binascii.Error):
        pass
    raise no_cursor()


def no_cursor() -> InvalidParameter:
    """What is raised for a cursor that names no row of ours."""
    return InvalidParameter("This is no cursor of ours; take next_cursor of the page before.", param="cursor")


def _number(cursor: str) -> int:
    last = read_cursor(cursor)
    if last.isdigit() and len(last) < 19:
        return int(last)
    raise no_cursor()
