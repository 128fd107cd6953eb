"""A server among those that share its database: it joins them, beats, and leaves.

Built by the runtime where the database is one that servers share. The beat is a thread with a connection of its own:
neither requests nor jobs put it off, nor who holds all their connections. What a server says of itself is what
`soup route` goes by, and what `soup replicas` lists.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta

import migrations
from registry.catalogue import Database
from registry.catalogue.replica_rows import NewReplica, ReplicaLoad
from registry.errors import SoupError
from service.settings import Settings
from service.version import VERSION

log = logging.getLogger("soup.presence")
LEAVE_SECONDS = 2.0
"""How long a stop waits for the database to hear of it."""
BUSY_SECONDS = 2.0
"""How long a beat waits for a row; the next one tries again."""


class Presence:
    """The row of this server among the replicas, and the thread that renews it.

    `load` says what the server has to do now; `bases` are fingerprints by base id.
    """

    def __init__(
        self, database: Database, settings: Settings, *, bases: Mapping[str, str], load: Callable[[], ReplicaLoad]
    ) -> None:
        self.me = NewReplica(
            id=f"replica-{secrets.token_hex(6)}",
            role=settings.role,
            url=None if settings.role == "worker" else settings.replica_url,
            bases=dict(bases),
            places=settings.engine_rows,
            bank_bytes=settings.adapter_bank_bytes,
            beat=timedelta(seconds=settings.replica_beat_seconds),
            version=VERSION,
            revision=migrations.head(),
        )
        self._database = database
        self._beats = Database(settings.database, pool_size=1, busy_seconds=BUSY_SECONDS)
        self._load = load
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="presence", daemon=True)
        self._there = True

    def check(self) -> None:
        """Raises Incompatible where a server that is there has another state of one of the base models."""
        with self._database.read() as catalogue:
            catalogue.replicas.check(self.me.bases)

    def join(self) -> None:
        """Be there from now on, once the server listens; raises Incompatible as `check` does."""
        self._join(self._database)
        self._thread.start()

    def begin_leave(self) -> None:
        """Have the thread say that this server goes: routers send nothing more, while what was sent is answered."""
        self._over.set()

    def leave(self) -> None:
        """Be there no longer, once that is said, or cannot be for some seconds. Again is nothing."""
        self.begin_leave()
        if self._thread.is_alive():
            self._thread.join(LEAVE_SECONDS)

    def _join(self, database: Database) -> None:
        with database.write() as catalogue:
            catalogue.replicas.join(self.me, self._load())

    def _loop(self) -> None:
        while not self._over.wait(self.me.beat.total_seconds()):
            try:
                self._beat()
            except SoupError as error:
                self._is_there(error.message)
            except Exception:
                log.exception("the beat failed")
            else:
                self._is_there(None)
        try:
            with self._beats.beside() as catalogue:
                catalogue.replicas.leave(self.me.id)
        except Exception as error:  # then it is out after two beats
            log.warning("this server could not say that it leaves (%s)", type(error).__name__)
        finally:
            self._beats.close()

    def _beat(self) -> None:
        with self._beats.beside() as catalogue:
            known = catalogue.replicas.beat(self.me.id, self._load())
        if not known:  # out for as long as the database was, or this process stood still
            self._join(self._beats)

    def _is_there(self, trouble: str | None) -> None:
        """Tell the log of a change, once."""
        before, self._there = self._there, trouble is None
        if before and not self._there:
            log.warning("the others do not hear that this server is there: %s", trouble)
        elif self._there and not before:
            log.info("the others hear of this server again")
