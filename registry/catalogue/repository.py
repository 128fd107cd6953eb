"""Base class of the catalogue's repositories: runs queries and returns rows as values, one, all or a page.

Pages are selected by key, not by offset: a cursor holds the key of the last row, so inserts and deletes shift nothing.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Select,
    Table,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    true,
    update,
)

from registry.catalogue.rows import Etags, Namespaces, Page
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
    """The database's time in microseconds since 1970, UTC, also within a transaction; the same for all servers."""
    return literal_column(_CLOCKS[connection.dialect.name], BigInteger)


def seen_by(visible: Namespaces, namespace: Column[Any]) -> ColumnElement[bool]:
    """The condition that a row's namespace is among the visible ones."""
    return true() if visible is None else namespace.in_(visible)


def matching(table: Table, **values: str | None) -> list[ColumnElement[bool]]:
    """Conditions that columns equal these values; None gives no condition."""
    return [table.c[name] == value for name, value in values.items() if value is not None]


def is_expected(etag: str, if_match: Etags) -> bool:
    """Return True if `if_match` is None, or has `etag`, or `*` for any."""
    return if_match is None or not if_match.isdisjoint((etag, "*"))


class TableGateway:
    """Base of classes that read and write tables within a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _insert(self, table: Table, **values: Any) -> None:
        self._connection.execute(insert(table).values(**values))

    def _update(self, table: Table, *conditions: ColumnElement[bool], **values: Any) -> int:
        """Update the rows that meet all conditions; returns their number."""
        return self._connection.execute(update(table).where(*conditions).values(**values)).rowcount

    def _delete(self, table: Table, *conditions: ColumnElement[bool]) -> int:
        """Delete the rows that meet all conditions; returns their number."""
        return self._connection.execute(delete(table).where(*conditions)).rowcount

    def _count(self, table: Table, *conditions: ColumnElement[bool]) -> int:
        """The number of rows that meet all conditions."""
        query = select(func.count()).select_from(table).where(*conditions)
        return int(self._connection.execute(query).scalar_one())

    def _exists(self, *conditions: ColumnElement[bool]) -> bool:
        """Return True if a row of the conditions' tables meets all of them."""
        return bool(self._connection.execute(select(exists().where(*conditions))).scalar_one())


class Repository(TableGateway, Generic[Row]):
    """Reads and writes the rows of one noun; `values` validates a row by its column names."""

    values: TypeAdapter[Row]

    def _row(self, row: Any) -> Row:
        return self.values.validate_python(dict(row))

    def _first(self, query: Select[Any]) -> Row | None:
        row = self._connection.execute(query).mappings().first()
        return None if row is None else self._row(row)

    def _all(self, query: Select[Any]) -> list[Row]:
        return [self._row(row) for row in self._connection.execute(query).mappings()]

    def _page(self, query: Select[Any], key: ColumnElement[Any], *, limit: int, cursor: str | None) -> Page[Row]:
        """At most `limit` rows of `query`, highest `key` first, after the row that `cursor` names."""
        return self._page_of(newest(query, key, limit=limit, cursor=cursor), limit=limit)

    def _page_of(self, query: Select[Any], *, limit: int) -> Page[Row]:
        """The page of a query that `newest` has made."""
        rows = self._connection.execute(query).mappings().all()
        next_cursor = write_cursor(str(rows[limit - 1]["page_key"])) if len(rows) > limit else None
        return Page(rows=tuple(self._row(row) for row in rows[:limit]), next_cursor=next_cursor)


def newest(query: Select[Any], key: ColumnElement[Any], *, limit: int, cursor: str | None) -> Select[Any]:
    """The rows of `query` after `cursor`, highest `key` first, with the key as `page_key`.

    Selects `limit` + 1 rows: the last one only shows that a next page exists. Raises InvalidParameter.
    """
    if limit < 1:
        raise InvalidParameter("A page has at least one row.", param="limit")
    if cursor is not None:
        query = query.where(key < _number(cursor))
    return query.add_columns(key.label("page_key")).order_by(key.desc()).limit(limit + 1)


def write_cursor(last: str) -> str:
    """The cursor after the row with this key."""
    return base64.urlsafe_b64encode(f"after:{last}".encode()).decode()


def read_cursor(cursor: str) -> str:
    """The key in a cursor, printable ASCII; raises InvalidParameter."""
    try:
        word, _, last = base64.urlsafe_b64decode(cursor.encode("ascii")).decode("ascii").partition(":")
        if word == "after" and last.isprintable():
            return last
    except (ValueError, binascii.Error):
        pass
    raise no_cursor()


def no_cursor() -> InvalidParameter:
    """The error for a malformed cursor, or one that names no row."""
    return InvalidParameter("The cursor is not valid: use next_cursor of the previous page.", param="cursor")


def _number(cursor: str) -> int:
    last = read_cursor(cursor)
    if last.isdigit() and len(last) < 19:
        return int(last)
    raise no_cursor()
