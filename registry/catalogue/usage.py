"""Usage of inference: requests and tokens by day, key, namespace and model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from sqlalchemy import ColumnElement, and_, func, literal, or_, select, tuple_

from registry.catalogue.repository import TableGateway, matching, no_cursor, read_cursor, write_cursor
from registry.catalogue.rows import Namespaces, Page
from registry.catalogue.tables import usage

GROUPS = ("day", "key_id", "namespace", "model")
NUMBERS = ("requests", "tokens_in", "tokens_out")
"""The counted numbers. Another one needs a column (in `tables`, and a migration), a field of `UsageSum` and of
`schemas.activity`, and its value in `service.http.models.metering`, to which the engine gives counts (`OnEnd`).
"""
SUMS = [func.sum(usage.c[name]).label(name) for name in NUMBERS]


@dataclass(frozen=True)
class UsageKey:
    """The key of a usage row: UTC day (2030-01-31), API key, namespace and model."""

    day: str
    key_id: str
    namespace: str
    model: str


@dataclass(frozen=True)
class UsageSum:
    """Requests that the engine started, their prompt tokens, and their generated tokens."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def __add__(self, usage: UsageSum) -> UsageSum:
        return UsageSum(
            self.requests + usage.requests, self.tokens_in + usage.tokens_in, self.tokens_out + usage.tokens_out
        )


@dataclass(frozen=True)
class UsageRow(UsageSum):
    """A sum of usage over a group; columns that it is not grouped by are None."""

    day: str | None = None
    key_id: str | None = None
    namespace: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class UsageFilter:
    """A filter of rows: of `key_id` or in `visible` namespaces (None: all), with columns equal to `values`.

    `since` is included, `until` is not.
    """

    key_id: str
    visible: Namespaces
    since: date | None = None
    until: date | None = None
    values: Mapping[str, str | None] = field(default_factory=dict)

    def conditions(self) -> list[ColumnElement[bool]]:
        """The filter as SQL conditions."""
        conditions = matching(usage, **self.values)
        if self.visible is not None:
            conditions.append(or_(usage.c.key_id == self.key_id, usage.c.namespace.in_(self.visible)))
        if self.since is not None:
            conditions.append(usage.c.day >= self.since.isoformat())
        if self.until is not None:
            conditions.append(usage.c.day < self.until.isoformat())
        return conditions


class Usage(TableGateway):
    """Usage rows."""

    def add(self, counted: Mapping[UsageKey, UsageSum]) -> None:
        """Add counted usage to the rows with its keys."""
        for key, counts in counted.items():
            has_key = and_(*(usage.c[name] == getattr(key, name) for name in GROUPS))
            sums = {name: usage.c[name] + getattr(counts, name) for name in NUMBERS}
            if self._update(usage, has_key, **sums) == 0:
                self._insert(usage, **vars(key), **vars(counts))

    def list(
        self, filter: UsageFilter, *, by: Sequence[str] = GROUPS, limit: int, cursor: str | None = None
    ) -> Page[UsageRow]:
        """Sums for each combination of values of the columns `by`, last day first; the other columns are None.

        Leaves out sums without requests and tokens, such as the row of a restored adapter.
        """
        columns = [usage.c[name] for name in GROUPS if name in by]
        query = select(*columns, *SUMS).where(*filter.conditions()).group_by(*columns)
        query = query.having(func.sum(usage.c.requests + usage.c.tokens_in) > 0)
        if cursor is not None:
            query = query.where(tuple_(*columns) < tuple_(*map(literal, _read(cursor, len(columns)))))
        query = query.order_by(*(column.desc() for column in columns)).limit(limit + 1)
        rows = self._connection.execute(query).mappings().all()
        next_cursor = None
        if len(rows) > limit:
            next_cursor = write_cursor(json.dumps([rows[limit - 1][column.name] for column in columns]))
        return Page(rows=tuple(_row(row) for row in rows[:limit]), next_cursor=next_cursor)

    def total(self, filter: UsageFilter) -> UsageSum:
        """The sum of all rows that match a filter."""
        row = self._connection.execute(select(*SUMS).where(*filter.conditions())).mappings().one()
        return UsageSum(**{name: int(value or 0) for name, value in row.items()})


def _row(row: Any) -> UsageRow:
    sums = UsageSum(**{name: int(row[name]) for name in NUMBERS})
    return UsageRow(**vars(sums), **{name: row.get(name) for name in GROUPS})


def _read(cursor: str, columns: int) -> list[str]:
    try:
        values = json.loads(read_cursor(cursor))
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, list) and len(values) == columns and all(map(_is_text, values)):
        return values
    raise no_cursor()


def _is_text(value: object) -> bool:
    """Return True if every database can compare it: PostgreSQL rejects NUL and lone surrogates."""
    return isinstance(value, str) and re.search("[\x00\ud800-\udfff]", value) is None
