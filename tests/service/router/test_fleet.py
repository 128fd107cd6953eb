"""Who takes requests, by rows of the database and a clock that the test moves."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from registry.catalogue.replica_rows import ReplicaRow
from registry.errors import Unavailable
from service.router import fleet as fleet_module
from service.router.fleet import POLL_SECONDS, Fleet

START = datetime(2030, 1, 1, tzinfo=UTC)
ONE = ReplicaRow(
    requests=0, adapters=0, adapter_bytes=0, id="one", role="api", url="http://10.0.0.1:80", bases={"tiny": "f"},
    places=4, bank_bytes=1, beat=timedelta(seconds=2), started_at=START, seen_at=START, read_at=START, alive=True,
)  # fmt: skip
TWO = replace(ONE, id="two")


class Time:
    """A router's clock, and the looks that it takes at its database."""

    def __init__(self) -> None:
        self.now = 100.0
        self.fleet = Fleet(None, clock=lambda: self.now)  # type: ignore[arg-type]  # these tests hand it the rows

    def look(self, *rows: ReplicaRow, after: float = POLL_SECONDS) -> set[str]:
        self.now += after
        self.fleet.take(list(rows))
        return set(self.fleet.members)

    def pass_by(self, seconds: float, *rows: ReplicaRow, beating: ReplicaRow | None = None) -> set[str]:
        """Look for so long at rows that stay as they are, and at one that beats in time."""
        began = self.now
        for _ in range(round(seconds / POLL_SECONDS)):
            self.look(*rows, *self._beaten(beating, began))
        return set(self.fleet.members)

    def _beaten(self, row: ReplicaRow | None, began: float) -> list[ReplicaRow]:
        beat = 2
        return [] if row is None else [beaten(row, (self.now + POLL_SECONDS - began) // beat * beat)]


def beaten(row: ReplicaRow, seconds: float, **more: int) -> ReplicaRow:
    return replace(row, seen_at=row.seen_at + timedelta(seconds=seconds), **more)


@pytest.fixture
def time() -> Time:
    return Time()


def test_only_those_that_are_there_and_can_be_reached(time: Time) -> None:
    rows = [ONE, replace(ONE, id="out", alive=False), replace(ONE, id="worker", url=None)]
    assert time.look(*rows) == {"one"}


def test_two_missed_beats_and_a_half_and_it_is_out_until_it_beats(time: Time) -> None:
    time.look(ONE, TWO)
    assert time.pass_by(5, ONE, beating=TWO) == {"one", "two"}
    assert time.pass_by(1.5, ONE, beating=beaten(TWO, 6)) == {"two"}
    assert time.look(replace(ONE, alive=False), beaten(TWO, 6)) == {"two"}
    assert time.look(beaten(ONE, 9), beaten(TWO, 6)) == {"one", "two"}


def test_while_the_database_is_away_nobody_is_out(time: Time) -> None:
    """Nobody could beat: each has two beats from when it is back."""
    time.look(ONE, TWO)
    assert time.look(replace(ONE, alive=False), replace(TWO, alive=False), after=600) == {"one", "two"}
    assert time.pass_by(4, ONE, beating=beaten(TWO, 600)) == {"one", "two"}
    assert time.pass_by(4, ONE, beating=beaten(TWO, 604)) == {"two"}


@pytest.mark.parametrize("outage", [1.5, 4, 5, 6, 600])
@pytest.mark.parametrize("before", [0.5, 1, 1.5])
def test_while_the_database_takes_no_writes_nobody_is_out_and_nothing_given_up(
    time: Time, outage: float, before: float
) -> None:
    """Its disk is full, or it is a standby: rows are read and stay as they were; then one beats before the other."""

    async def asked() -> bool:
        with time.fleet.members["one"].waiting(counts=True) as scope:
            for rows in ((ONE, beaten(TWO, before)), (replace(ONE, alive=False), replace(TWO, alive=False))):
                time.pass_by(before if rows[0] is ONE else outage, *rows)
                assert set(time.fleet.members) == {"one", "two"}
            assert time.pass_by(1.5, ONE, beaten(TWO, 601)) == {"one", "two"}
            await checkpoint()
        return scope.cancelled_caught

    time.look(ONE, TWO)
    assert not anyio.run(asked)
    assert time.pass_by(8, ONE, beating=beaten(TWO, 603)) == {"two"}, "now it was the only one"


@given(st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.sampled_from([0.5, 1.0, 2.0, 9.0])), max_size=40))
def test_all_are_never_out_at_once(looks: list[tuple[set[str], float]]) -> None:
    """Whoever beats, and whenever the router looks: the one that beat last is there."""
    time, rows = Time(), {id_: replace(ONE, id=id_) for id_ in "abc"}
    time.look(*rows.values())
    for beating, after in looks:
        rows |= {id_: beaten(rows[id_], 1) for id_ in beating}
        there = time.look(*rows.values(), after=after)
        assert there >= beating
        assert there


def test_a_clock_of_the_database_that_is_set_puts_nobody_out(time: Time) -> None:
    time.look(ONE)
    for step in (3600, -7200):
        assert time.pass_by(2, replace(beaten(ONE, step), alive=False)) == {"one"}


def test_what_waits_for_one_that_is_out_is_given_up_and_for_one_that_left_is_not(time: Time) -> None:
    async def given_up(*rows: ReplicaRow) -> bool:
        with time.fleet.members["one"].waiting(counts=True) as scope:
            time.pass_by(7, *rows, beating=TWO)
            await checkpoint()
        return scope.cancelled_caught

    time.look(ONE, TWO)
    assert not anyio.run(given_up)
    time.look(ONE, TWO)
    assert anyio.run(given_up, ONE)


def test_load_is_what_was_sent_from_here_and_what_others_sent(time: Time) -> None:
    time.look(ONE)
    member = time.fleet.members["one"]

    async def ask() -> None:
        with member.waiting(counts=True), member.waiting(counts=True), member.waiting(counts=False):
            time.look(beaten(ONE, 2, requests=5))
            assert (member.load.requests, member.load.places) == (5, 4)
            with member.waiting(counts=True):
                assert member.load.requests == 6
        assert member.load.requests == 3

    anyio.run(ask)
    time.look(beaten(ONE, 4, requests=0))
    assert member.load.requests == 0


def test_one_that_took_no_connection_is_suspect_until_its_next_beat(time: Time) -> None:
    time.look(ONE)
    member = time.fleet.members["one"]
    member.failed()
    time.look(ONE)
    assert member.is_suspect
    time.look(beaten(ONE, 2))
    assert not member.is_suspect


class Rows:
    """A database that answers, fails or hangs as the test says; `read` counts."""

    def __init__(self) -> None:
        self.reads = 0
        self.fails = False
        self.go_on = threading.Event()

    def read(self) -> list[ReplicaRow]:
        self.reads += 1
        assert self.go_on.wait(60)
        if self.fails:
            raise Unavailable("It is away.")
        return [ONE]


@pytest.mark.parametrize("fails", [False, True])
def test_those_who_ask_for_a_look_share_one_that_begins_after_they_asked(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    fleet, rows = Fleet(None), Rows()  # type: ignore[arg-type]
    monkeypatch.setattr(fleet, "_read", rows.read)
    monkeypatch.setattr(fleet_module, "POLL_SECONDS", 60)
    rows.go_on.set()
    answers: list[bool] = []

    async def ask() -> None:
        answers.append(await fleet.looked())

    async def all_at_once() -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(fleet.watch)
            assert rows.reads == 1
            rows.fails = fails
            async with anyio.create_task_group() as asking:
                for _ in range(6):
                    asking.start_soon(ask)
            tasks.cancel_scope.cancel()

    anyio.run(all_at_once)
    assert answers == [not fails] * 6
    assert rows.reads == 2
    assert set(fleet.members) == {"one"}


def test_nobody_waits_for_a_look_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, rows = Fleet(None), Rows()  # type: ignore[arg-type]
    monkeypatch.setattr(fleet, "_read", rows.read)
    monkeypatch.setattr(fleet_module, "LOOK_SECONDS", 0.05)

    async def ask() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fleet.watch)
            assert not await fleet.looked()
            rows.go_on.set()
            tasks.cancel_scope.cancel()

    anyio.run(ask)
