"""Who takes requests, by rows of the database and a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import pytest
from anyio.lowlevel import checkpoint

from registry.catalogue.replica_rows import ReplicaRow
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

    def pass_by(self, seconds: float, *rows: ReplicaRow) -> set[str]:
        for _ in range(round(seconds / POLL_SECONDS)):
            self.look(*rows)
        return set(self.fleet.members)


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
    assert time.pass_by(5, ONE, beaten(TWO, 2)) == {"one", "two"}
    assert time.pass_by(0.5, ONE, beaten(TWO, 4)) == {"two"}
    assert time.look(replace(ONE, alive=False), beaten(TWO, 4)) == {"two"}
    assert time.look(beaten(ONE, 9), beaten(TWO, 4)) == {"one", "two"}


def test_while_the_database_is_away_nobody_is_out(time: Time) -> None:
    """Nobody could beat: each has two beats from when it is back."""
    time.look(ONE, TWO)
    assert time.look(replace(ONE, alive=False), replace(TWO, alive=False), after=600) == {"one", "two"}
    assert time.pass_by(4, ONE, beaten(TWO, 600)) == {"one", "two"}
    assert time.pass_by(2, ONE, beaten(TWO, 604)) == {"two"}


def test_a_clock_of_the_database_that_is_set_puts_nobody_out(time: Time) -> None:
    time.look(ONE)
    for step in (3600, -7200):
        assert time.pass_by(2, replace(beaten(ONE, step), alive=False)) == {"one"}


def test_what_waits_for_one_that_is_out_is_given_up_and_for_one_that_left_is_not(time: Time) -> None:
    async def given_up(*rows: ReplicaRow) -> bool:
        with time.fleet.members["one"].waiting() as scope:
            time.pass_by(6, *rows)
            await checkpoint()
        return scope.cancelled_caught

    time.look(ONE)
    assert not anyio.run(given_up)
    time.look(ONE)
    assert anyio.run(given_up, ONE)


def test_load_is_what_was_sent_from_here_and_what_others_sent(time: Time) -> None:
    time.look(ONE)
    member = time.fleet.members["one"]

    async def ask() -> None:
        with member.waiting(), member.waiting():
            time.look(beaten(ONE, 2, requests=5))
            assert (member.load.requests, member.load.places) == (5, 4)
            with member.waiting():
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
