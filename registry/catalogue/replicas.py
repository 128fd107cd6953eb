"""Replicas: the servers that share a database, each a row that it renews with every beat.

All moments are of the database's clock, so that servers whose own clocks differ agree on who is there. A replica that
misses two beats is out; half a beat more is left for the way. A beat changes the sender's own row alone and needs no
turn to write (`Database.beside`), so that nobody is out because others write for long.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    case,
    delete,
    func,
    insert,
    inspect,
    select,
    type_coerce,
    update,
)

from registry.catalogue.database_clock import database_clock
from registry.catalogue.replica_rows import NewReplica, ReplicaLoad, ReplicaRow
from registry.catalogue.replica_tables import replicas
from registry.catalogue.repository import Repository
from registry.catalogue.tables import Microseconds
from registry.errors import Incompatible

MISSED = 2.5
"""Beats without a word after which a replica is out."""
KEPT = timedelta(hours=1)
"""How long one that is out is still listed."""
_MICROSECOND = timedelta(microseconds=1)


class Replicas(Repository[ReplicaRow]):
    """Replica rows."""

    values = TypeAdapter(ReplicaRow)

    @property
    def _now(self) -> ColumnElement[int]:
        return database_clock(self._connection)

    @property
    def _silent(self) -> ColumnElement[int]:
        """Microseconds since a replica was last heard of."""
        return self._now - type_coerce(replicas.c.seen_at, BigInteger)

    @property
    def _alive(self) -> ColumnElement[bool]:
        return self._silent <= MISSED * replicas.c.beat

    def check(self, bases: Mapping[str, str]) -> None:
        """Raises Incompatible where a replica that is there has another state of one of these bases.

        `bases` are fingerprints by base id.
        """
        for row in self.list():
            for base_id, fingerprint in sorted(bases.items()) if row.alive else ():
                theirs = row.bases.get(base_id, fingerprint)
                if theirs != fingerprint:
                    where = "" if row.url is None else f" at {row.url}"
                    raise Incompatible(
                        f"Base model '{base_id}' is in another state here ({fingerprint[:19]}) than on the server "
                        f"{row.id}{where} ({theirs[:19]}), which shares the database: give all the same files, or "
                        "the other state an id of its own.",
                        param="bases",
                    )

    def join(self, new: NewReplica, load: ReplicaLoad) -> None:
        """Be there from now on; raises Incompatible as `check` does. In the turn to write.

        So of two that start at once one sees the other. Rows of those that are long out go.
        """
        self.check(new.bases)
        old = self._silent > KEPT // _MICROSECOND
        self._connection.execute(delete(replicas).where(old | (replicas.c.id == new.id)))
        values = {**asdict(new), **asdict(load), "beat": new.beat // _MICROSECOND}
        self._connection.execute(insert(replicas).values(**values, started_at=self._now, seen_at=self._now))

    def beat(self, id: str, load: ReplicaLoad) -> bool:
        """Say that it is there, and how much it has to do; False where it is out and has to join again."""
        beaten = update(replicas).where(replicas.c.id == id, self._alive)
        return self._connection.execute(beaten.values(**asdict(load), seen_at=self._now)).rowcount == 1

    def leave(self, id: str) -> None:
        """Be there no longer."""
        self._connection.execute(delete(replicas).where(replicas.c.id == id))

    def list(self) -> builtins.list[ReplicaRow]:
        """Every replica, also those that are out since not long ago, in the order in which they joined."""
        alive = case((self._alive, 1), else_=0).label("alive")
        now = type_coerce(self._now, Microseconds).label("read_at")
        return self._all(select(replicas, alive, now).order_by(replicas.c.started_at, replicas.c.id))

    def running(self) -> int:
        """How many are there; none where the schema is from before there were any."""
        if not inspect(self._connection).has_table(replicas.name):
            return 0
        return self._connection.scalar(select(func.count()).select_from(replicas).where(self._alive)) or 0

    def _row(self, row: object) -> ReplicaRow:
        found = dict(row)  # type: ignore[call-overload]
        return super()._row({**found, "beat": found["beat"] * _MICROSECOND})

    def remove_all(self) -> None:
        """Forget every replica."""
        self._connection.execute(delete(replicas))
