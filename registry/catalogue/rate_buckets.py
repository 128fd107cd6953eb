"""What keys and namespaces have used of their rates, where several servers count together.

A bucket is `used` at a moment of the database's clock; how it wears off is said by `service.rates`. Whoever changes
one holds its row until the transaction ends, and takes the rows in one order, so that nobody waits in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Float,
    String,
    Table,
    bindparam,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from registry.catalogue.repository import database_clock
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
"""Whose it is, and of what: requests or tokens."""
SECOND = 1_000_000
KEY = (rate_buckets.c.subject, rate_buckets.c.measure)


@dataclass(frozen=True)
class HeldBucket:
    """What was used, how many seconds ago, and the moment that this is of, in microseconds."""

    used: float
    seconds: float
    moment: int


class RateBuckets:
    """The rows of buckets."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def held(self, names: Collection[BucketName]) -> dict[BucketName, HeldBucket]:
        """The buckets of these names, new ones empty, which nobody else changes until the transaction ends.

        Rows that are missing are made first: made after others are locked, two transactions could wait for each other.
        """
        found: dict[BucketName, HeldBucket] = {}
        while found.keys() != set(names):  # again only where one was removed in between
            self._make(names)
            found = self._locked(names)
        return found

    def _make(self, names: Collection[BucketName]) -> None:
        there = {(row.subject, row.measure) for row in self._connection.execute(select(*KEY).where(_among(names)))}
        missing = sorted(set(names) - there)
        if missing:
            rows = [{"subject": subject, "measure": measure, "used": 0.0, "at": 0} for subject, measure in missing]
            insert = postgresql.insert if self._connection.dialect.name == "postgresql" else sqlite.insert
            self._connection.execute(insert(rate_buckets).on_conflict_do_nothing(), rows)

    def _locked(self, names: Collection[BucketName]) -> dict[BucketName, HeldBucket]:
        query = select(rate_buckets, database_clock(self._connection).label("now")).where(_among(names))
        rows = self._connection.execute(query.order_by(*KEY).with_for_update())
        # whoever had to wait for a row may have read the clock before the row was written
        return {
            (row.subject, row.measure): HeldBucket(
                row.used, max(0, row.now - row.at) / SECOND, max(row.now, row.at)
            )
            for row in rows
        }  # fmt: skip

    def put(self, used: Mapping[BucketName, float], held: Mapping[BucketName, HeldBucket]) -> None:
        """So much is used of each of these at the moment that it was held at."""
        its = (rate_buckets.c.subject == bindparam("its_subject"), rate_buckets.c.measure == bindparam("its_measure"))
        values = [
            {"its_subject": subject, "its_measure": measure, "used": amount, "at": held[subject, measure].moment}
            for (subject, measure), amount in sorted(used.items())
        ]
        if values:
            self._connection.execute(update(rate_buckets).where(*its), values)


def _among(names: Collection[BucketName]) -> ColumnElement[bool]:
    return tuple_(*KEY).in_(sorted(names))
