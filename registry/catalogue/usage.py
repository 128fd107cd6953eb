"""What inference was used: requests and tokens by day, key, namespace and model."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, insert, literal, or_, select, true, tuple_, update

from registry.catalogue.repository import matching
from registry.catalogue.rows import Namespaces, Page, UsageKey, UsageRow, UsageSum
from registry.catalogue.tables import usage
from registry.errors import InvalidParameter

GROUPS = ("day", "key_id", "namespace", "model")
NUMBERS = ("requests", "tokens_in", "tokens_out")
SUMS = [func.sum(usage.c[name]).label(name) for name in NUMBERS]


@dataclass(frozen=True)
class UsageFilter:
    """Which rows: those of `key_id` or of the `visible` namespaces (None: all), that equal every one of `wanted`.

    `since` is included, `until` is not.
    """

    key_id: str
    visible: Namespaces
    since: date | None = None
    until: date | None = None
    wanted: Mapping[str, str | None] = field(default_factory=dict)

    def conditions(self) -> list[ColumnElement[bool]]:
        """The same as SQL."""
        found = [
            true() if self.visible is None else or_(usage.c.key_id == self.key_id, usage.c.namespace.in_(self.visible))
        ]
        if self.since is not None:
            found.append(usage.c.day >= self.since.isoformat())
        if self.until is not None:
            found.append(usage.c.day < self.until.isoformat())
        return [*found, *matching(usage, **self.wanted)]


class Usage:
    """Usage rows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, counted: Mapping[UsageKey, UsageSum]) -> None:
        """Add what was counted to the rows of its days."""
        for key, more in counted.items():
            where = and_(*(usage.c[name] == getattr(key, name) for name in GROUPS))
            sums = {name: usage.c[name] + getattr(more, name) for name in NUMBERS}
            if self._connection.execute(update(usage).where(where).values(sums)).rowcount == 0:
                self._connection.execute(insert(usage).values(**vars(key), **vars(more)))

    def list(
        self, which: UsageFilter, *, by: Sequence[str] = GROUPS, limit: int, cursor: str | None = None
    ) -> Page[UsageRow]:
        """Sums of each different value of the columns `by`, last day first; the other columns are None."""
        columns = [usage.c[name] for name in GROUPS if name in by]
        query = select(*columns, *SUMS).where(*which.conditions()).group_by(*columns)
        if cursor is not None:
            query = query.where(tuple_(*columns) < tuple_(*map(literal, _read(cursor, len(columns)))))
        query = query.order_by(*(column.desc() for column in columns)).limit(limit + 1)
        found = self._connection.execute(query).mappings().all()
        rows = tuple(_row(row) for row in found[:limit])
        last = [found[limit - 1][column.name] for column in columns] if len(found) > limit else None
        return Page(rows=rows, next_cursor=None if last is None else _write(last))

    def total(self, which: UsageFilter) -> UsageSum:
        """The sum of everything."""
        row = self._connection.execute(select(*SUMS).where(*which.conditions())).mappings().one()
        return UsageSum(**{name: int(value or 0) for name, value in row.items()})


def _row(row: Any) -> UsageRow:
    sums = UsageSum(**{name: int(row[name]) for name in NUMBERS})
    return UsageRow(**vars(sums), **{name: row.get(name) for name in GROUPS})


def _write(last: Sequence[str]) -> str:
    """The cursor behind a row of these values."""
    return base64.urlsafe_b64encode(json.dumps(last).encode()).decode()


def _read(cursor: str, columns: int) -> list[str]:
    try:
        found = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
    except (ValueError, binascii.Error, RecursionError):
        found = None
    if isinstance(found, list) and len(found) == columns and all(map(_is_text, found)):
        return found
    raise InvalidParameter("This is no cursor of ours; take next_cursor of the page before.", param="cursor")


def _is_text(value: object) -> bool:
    """Whether every database compares it: PostgreSQL takes no NUL and no half of a surrogate pair."""
    return isinstance(value, str) and "\x00" not in value and not any("\ud800" <= one <= "\udfff" for one in value)
