"""Servers that share a database, each with a row that it renews with every heartbeat.

All moments are by the database's clock, since clocks of servers differ. A server that misses two heartbeats is dead;
half a beat more is allowed for latency. A heartbeat changes only the server's row and does not take the write lock
(`Database.write_unlocked`), so that a long write of another server does not make it seem dead.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    String,
    Table,
    func,
    or_,
    select,
)

from registry.catalogue.repository import TableGateway, database_clock
from registry.catalogue.tables import metadata
from registry.errors import Incompatible

replicas = Table(
    "replicas",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("bases", JSON, nullable=False),
    Column("beat", BigInteger, nullable=False),  # microseconds
    Column("seen_at", BigInteger, nullable=False),  # microseconds since 1970, by the database's clock
)


MISSED = 2.5
"""Heartbeats after which a silent server is dead."""


class Replicas(TableGateway):
    """Rows of servers; `bases` are fingerprints by base model id."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._now = database_clock(connection)

    @property
    def _alive(self) -> ColumnElement[bool]:
        # a row from so far ahead was written before the clock was set back: a server that lives joins again
        return func.abs(self._now - replicas.c.seen_at) <= MISSED * replicas.c.beat

    def check(self, bases: Mapping[str, str]) -> None:
        """Raise Incompatible if a live server has another fingerprint of one of these base models."""
        for row in self._connection.execute(select(replicas.c.id, replicas.c.bases).where(self._alive)):
            for base_id, fingerprint in sorted(bases.items()):
                stored = row.bases.get(base_id, fingerprint)
                if stored != fingerprint:
                    raise Incompatible(
                        f"Base model '{base_id}' differs ({fingerprint[:19]}) from that of server {row.id} "
                        f"({stored[:19]}), which uses the same database: give all servers the same files, "
                        "or this model another id.",
                        param="bases",
                    )

    def join(self, id: str, *, bases: Mapping[str, str], beat: timedelta) -> None:
        """Add a server and delete dead ones; raises Incompatible like `check`.

        Called in a write transaction, so that of two servers that start at once one sees the other.
        """
        self.check(bases)
        self._delete(replicas, or_(~self._alive, replicas.c.id == id))
        self._insert(replicas, id=id, bases=dict(bases), beat=beat // timedelta(microseconds=1), seen_at=self._now)

    def beat(self, id: str) -> bool:
        """Renew a server's row; returns False if it is dead or deleted, so that the server has to join again."""
        return self._update(replicas, replicas.c.id == id, self._alive, seen_at=self._now) == 1

    def leave(self, id: str) -> None:
        """Delete a server's row."""
        self._delete(replicas, replicas.c.id == id)

    def remove_all(self) -> None:
        """Delete every server's row."""
        self._delete(replicas)
