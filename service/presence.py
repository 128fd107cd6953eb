"""The registration of a server among those that share its database: it joins, sends heartbeats, and leaves.

Built by the runtime if servers share the database. Two servers with different files for one base model never run
together. The heartbeat is a thread with its own connection: neither requests nor jobs delay it, even if they use all
their connections.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta

from registry.catalogue import Database
from service.periodic import Periodic
from service.settings import Settings

LEAVE_SECONDS = 2.0
"""Seconds that a stop waits for the database to delete the row."""
BUSY_SECONDS = 2.0
"""Seconds that a heartbeat waits for the database; the next one tries again."""


class Presence:
    """The row of this server, and the thread that renews it. `bases` are fingerprints by base id."""

    def __init__(self, database: Database, settings: Settings, *, bases: Mapping[str, str]) -> None:
        self.id = f"{socket.gethostname()[:19]}-{secrets.token_hex(6)}"
        self._bases = dict(bases)
        self._seconds = settings.replica_beat_seconds
        self._database = database
        self._beats = Database(settings.database, pool_size=1, busy_seconds=BUSY_SECONDS)
        self._beating = Periodic("heartbeat", self._seconds, self._beat, last=self._leave)

    def check(self) -> None:
        """Raise Incompatible if a running server has another state of one of the base models."""
        with self._database.read() as catalogue:
            catalogue.replicas.check(self._bases)

    def join(self) -> None:
        """Write the row and start the heartbeat, once the server listens; raises Incompatible as `check` does."""
        self._join(self._database)
        self._beating.start()

    def leave(self) -> None:
        """Have the thread delete the row, and wait for it for some seconds. A second call does nothing."""
        self._beating.stop(seconds=LEAVE_SECONDS)

    def _join(self, database: Database) -> None:
        with database.write() as catalogue:
            catalogue.replicas.join(self.id, bases=self._bases, beat=timedelta(seconds=self._seconds))

    def _beat(self) -> None:
        with self._beats.write_unlocked() as catalogue:
            alive = catalogue.replicas.beat(self.id)
        if not alive:  # dead for as long as the database was, or this process stood still
            self._join(self._beats)

    def _leave(self) -> None:
        """Delete the row; if that fails, this server counts as dead after two beats."""
        with closing(self._beats), self._beats.write_unlocked() as catalogue:
            catalogue.replicas.leave(self.id)
