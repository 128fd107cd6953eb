"""Leaky buckets of the rate limits of keys and namespaces, shared by several servers.

A row says what was `used` at a moment of the database's clock; `service.rates` computes how it drains. A transaction
locks the rows it changes until it ends, always in the same order, so that there are no deadlocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Float,
    Select,
    String,
    Table,
    bindparam,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from registry.catalogue.repository import TableGateway, database_clock
from registry.catalogue.tables import metadata

rate_buckets = Table(
    "rate_buckets",
    metadata,
    Column("subject", String(200), primary_key=True),
    Column("measure", String(16), primary_key=True),
    Column("used", Float(53), nullable=False),
    Column("at", BigInteger, nullable=False),  # microseconds since 1970, by the database's clock
)

BucketName = tuple[str, str]
"""The subject (a key or namespace) and the measure (requests or tokens) of a bucket."""
SECOND = 1_000_000
AHEAD = 60 * SECOND
"""A bucket that was written this much in the future shows that the database's clock was set back; it counts as empty.
"""
KEY = (rate_buckets.c.subject, rate_buckets.c.measure)


@dataclass(frozen=True)
class BucketRow:
    """A bucket: its use `seconds` ago, and the present moment in microseconds."""

    used: float
    seconds: float
    moment: int


class RateBuckets(TableGateway):
    """Rows of rate buckets."""

    def read(self, names: Collection[BucketName]) -> dict[BucketName, BucketRow]:
        """The buckets of these names that have a row."""
        query = select(rate_buckets, database_clock(self._connection).label("now")).where(_has_name(names))
        return self._read(query)

    def lock(self, names: Collection[BucketName]) -> dict[BucketName, BucketRow]:
        """Lock the buckets of these names until the transaction ends; missing ones are inserted empty.

        They are inserted before any row is locked: after that, two transactions could wait for each other.
        """
        locked: dict[BucketName, BucketRow] = {}
        while locked.keys() != set(names):  # repeats only if one was removed in between
            self._insert_missing(names)
            locked = self._lock(names)
        return locked

    def _insert_missing(self, names: Collection[BucketName]) -> None:
        rows_read = self._connection.execute(select(*KEY).where(_has_name(names)))
        missing = sorted(set(names) - {(row.subject, row.measure) for row in rows_read})
        if missing:
            rows = [{"subject": subject, "measure": measure, "used": 0.0, "at": 0} for subject, measure in missing]
            insert = postgresql.insert if self._connection.dialect.name == "postgresql" else sqlite.insert
            self._connection.execute(insert(rate_buckets).on_conflict_do_nothing(), rows)

    def _lock(self, names: Collection[BucketName]) -> dict[BucketName, BucketRow]:
        query = select(rate_buckets, database_clock(self._connection).label("now")).where(_has_name(names))
        return self._read(query.order_by(*KEY).with_for_update())

    def _read(self, query: Select[Any]) -> dict[BucketName, BucketRow]:
        buckets = {}
        for row in self._connection.execute(query):
            is_ahead = row.at > row.now + AHEAD
            used, at = (0.0, row.now) if is_ahead else (row.used, row.at)
            # a transaction that waited for a row may have read the clock before the row was written
            buckets[row.subject, row.measure] = BucketRow(used, max(0, row.now - at) / SECOND, max(row.now, at))
        return buckets

    def put(self, used: Mapping[BucketName, float], locked: Mapping[BucketName, BucketRow]) -> None:
        """Set what is used of each locked bucket, at the moment it was locked."""
        query = update(rate_buckets).where(
            rate_buckets.c.subject == bindparam("of_subject"), rate_buckets.c.measure == bindparam("of_measure")
        )
        values = [
            {"of_subject": subject, "of_measure": measure, "used": amount, "at": locked[subject, measure].moment}
            for (subject, measure), amount in sorted(used.items())
        ]
        if values:
            self._connection.execute(query, values)


def _has_name(names: Collection[BucketName]) -> ColumnElement[bool]:
    return tuple_(*KEY).in_(sorted(names))
