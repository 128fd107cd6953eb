"""The replicas as a router knows them: read from the database twice a second, with the requests that it sent to each.

A replica is out when its row has not changed for two of its beats and a half while the rows of others did, counted by
the router's own clock and only while the database answers. So an outage of the database puts nobody out, nor does one
that answers and takes no writes, nor a step of its clock: whoever beat last is there, and all are never out at once.
What a router waits for from a replica that is out is given up; one that has left says itself how its last requests end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

import anyio
from anyio import TASK_STATUS_IGNORED, to_thread
from anyio.abc import TaskStatus

from registry.catalogue import Database
from registry.catalogue.replica_rows import ReplicaRow
from registry.catalogue.replicas import MISSED
from registry.errors import SoupError
from service.router.ranking import Load

log = logging.getLogger("soup.router")
POLL_SECONDS = 0.5
GAP_SECONDS = 3 * POLL_SECONDS
"""Between two looks at the database that are further apart than this no beat counts as missed."""
LOOK_SECONDS = 1.0
"""How long a request waits for a look."""


class Member:
    """A replica, with what this router has sent to it."""

    def __init__(self, row: ReplicaRow, now: float) -> None:
        self.row = row
        self.changed = now
        """When its row was first seen as it is, by the router's clock."""
        self.sent = 0
        """Inference of this router that it has not answered: what its engine computes."""
        self._others = 0
        self._failed: datetime | None = None
        self._waiting: set[anyio.CancelScope] = set()

    @property
    def load(self) -> Load:
        """What this router sent, and what others did by the replica's last word."""
        return Load(self.sent + self._others, self.row.places)

    @property
    def is_suspect(self) -> bool:
        """Whether it did not take a connection since its last beat."""
        return self._failed == self.row.seen_at

    def heard(self, row: ReplicaRow, now: float) -> bool:
        """The database has this row of it; whether that is another than before."""
        beat = row.seen_at != self.row.seen_at
        if beat:
            self.changed = now
            self._others = max(0, row.requests - self.sent)
        self.row = row
        return beat

    def is_silent(self, heard: float) -> bool:
        """Whether it has missed its beats, where the last beat of all was `heard` then."""
        return heard - self.changed > MISSED * self.row.beat.total_seconds()

    def failed(self) -> None:
        """It did not take a connection, or broke one off: others come first until it beats again."""
        self._failed = self.row.seen_at

    @contextmanager
    def waiting(self, *, counts: bool) -> Iterator[anyio.CancelScope]:
        """While something is asked of it: a scope that is cancelled where the replica is out.

        It `counts` as load where it is inference; an upload or a stream of a job's events keeps no place in the engine.
        """
        with anyio.CancelScope() as scope:
            self._waiting.add(scope)
            self.sent += counts
            try:
                yield scope
            finally:
                self.sent -= counts
                self._waiting.discard(scope)

    def give_up(self) -> None:
        """End everything that waits for it."""
        for scope in list(self._waiting):
            scope.cancel()


class _Look:
    """A look at the database."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.succeeded = False


class Fleet:
    """The replicas that take requests. All of it on the event loop; `clock` is the tests' seam for time."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._known: dict[str, Member] = {}
        """Those that were there once and are listed still, the silent ones too, which are back with their next beat."""
        self._members: dict[str, Member] = {}
        self._looked_at: float | None = None
        self._heard = 0.0
        """When a replica that takes requests was last seen to beat: until then the database took writes."""
        self._next = _Look()
        """The one that has not begun."""
        self._wanted = anyio.Event()
        """Set where somebody waits for that."""
        self._answers = True

    @property
    def members(self) -> Mapping[str, Member]:
        """Those that take requests, by id."""
        return self._members

    async def watch(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Look at the database for ever; started once the first look is over."""
        while True:
            look, self._next, self._wanted = self._next, _Look(), anyio.Event()
            try:
                await self._look(look)
            finally:
                look.over.set()
            task_status.started()
            task_status = TASK_STATUS_IGNORED
            with anyio.move_on_after(POLL_SECONDS):
                await self._wanted.wait()

    async def looked(self) -> bool:
        """Whether the database was looked at since now, within LOOK_SECONDS; all who ask at once share a look."""
        look = self._next
        self._wanted.set()
        with anyio.move_on_after(LOOK_SECONDS):
            await look.over.wait()
        return look.succeeded

    async def _look(self, look: _Look) -> None:
        """Read the replicas as they are now, or say in the log why not."""
        try:
            self.take(await to_thread.run_sync(self._read))
        except SoupError as error:
            if self._answers:
                log.warning("the replicas are taken to be as they were: %s", error.message)
            self._answers = False
        except Exception:
            log.exception("looking for replicas failed")
        else:
            look.succeeded = True
            if not self._answers:
                log.info("the replicas are read again")
            self._answers = True

    def _read(self) -> list[ReplicaRow]:
        with self._database.read() as catalogue:
            return catalogue.replicas.list()

    def take(self, rows: list[ReplicaRow]) -> None:
        """These are the rows now."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at > GAP_SECONDS:
            for member in self._members.values():
                member.changed = now
            self._heard = now
        self._looked_at = now
        known: dict[str, Member] = {}
        beaten: list[Member] = []
        for row in rows:
            there = self._known.get(row.id)
            if there is None and not row.alive:
                continue
            member = Member(row, now) if there is None else there
            if (member.heard(row, now) or there is None) and row.url is not None:
                beaten.append(member)
            known[row.id] = member
        self._known = known
        if beaten:
            self._hear(beaten, now)
        found = {id_: one for id_, one in known.items() if one.row.url is not None and not one.is_silent(self._heard)}
        before, self._members = self._members, found
        self._tell(before, {row.id for row in rows})

    def _hear(self, beaten: list[Member], now: float) -> None:
        """These beat now. Of the time since anybody did, what is longer than their own beat counts for nobody.

        The database took no writes then, or these were late too; the others are not out for it.
        """
        late = now - self._heard - max(one.row.beat.total_seconds() for one in beaten)
        if late > 0:
            for member in self._members.values():
                member.changed = min(now, member.changed + late)
        self._heard = now

    def _tell(self, before: Mapping[str, Member], listed: set[str]) -> None:
        """Say who came and who went, and give up what is waited for from those that went without a word."""
        for id_ in sorted(self._members.keys() - before.keys()):
            log.info("replica %s is there", id_, extra={"fields": {"url": self._members[id_].row.url}})
        for id_ in sorted(before.keys() - self._members.keys()):
            left = id_ not in listed
            log.log(
                logging.INFO if left else logging.WARNING,
                "replica %s %s", id_, "has left" if left else "is out: it has missed two beats",
            )  # fmt: skip
            if not left:
                before[id_].give_up()
