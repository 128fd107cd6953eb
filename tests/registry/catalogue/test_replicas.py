"""Replicas by the database's clock: who is there, who is out, and who may not join. On SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from registry.catalogue import Database
from registry.catalogue.replica_rows import NewReplica, ReplicaLoad
from registry.errors import Incompatible
from tests.postgres import Databases

IDLE = ReplicaLoad(requests=0, adapters=0, adapter_bytes=0)
ONE = NewReplica(
    id="one", role="all", url="http://10.0.0.1:8000", bases={"tiny": "sha256:" + "1" * 64}, places=16, bank_bytes=9,
    beat=timedelta(seconds=60),
)  # fmt: skip
TWO = replace(ONE, id="two", url=None, role="worker")


def join(database: Database, *new: NewReplica) -> None:
    for one in new:
        with database.write() as catalogue:
            catalogue.replicas.join(one, IDLE)


def alive(database: Database) -> dict[str, bool]:
    with database.read() as catalogue:
        return {row.id: row.alive for row in catalogue.replicas.list()}


def silent_for(database: Database, id: str, seconds: float) -> None:
    """As if the replica's last beat had been so long ago."""
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE replicas SET seen_at = seen_at - {round(seconds * 1e6)} WHERE id = '{id}'")


def test_who_joins_is_there_as_it_said(database: Database) -> None:
    join(database, ONE, TWO)
    with database.read() as catalogue:
        one, two = catalogue.replicas.list()
    assert {name: getattr(one, name) for name in vars(ONE)} == vars(ONE)
    assert (one.alive, two.alive, two.url) == (True, True, None)
    assert one.started_at <= one.seen_at <= one.read_at


def test_one_of_the_last_release_says_no_version_and_keeps_none(database: Database) -> None:
    """It knows no such columns: the row that it makes in the place of ours has none either."""
    join(database, replace(ONE, version="0.1.0", revision="0022"), TWO)
    with database.read() as catalogue:
        said = {row.id: (row.version, row.revision) for row in catalogue.replicas.list()}
    assert said == {"one": ("0.1.0", "0022"), "two": (None, None)}
    with database.beside() as catalogue:
        assert catalogue.replicas.beat("one", IDLE)
    with database.read() as catalogue:
        assert catalogue.replicas.list()[0].version == "0.1.0"


def test_the_clock_is_the_databases_and_goes_on_within_a_transaction(database: Database) -> None:
    """A transaction that waited for its turn would else beat for the moment at which it began to wait."""
    with database.write() as catalogue:
        catalogue.replicas.join(ONE, IDLE)
        first = catalogue.replicas.list()[0].read_at
        threading.Event().wait(0.005)
        assert catalogue.replicas.list()[0].read_at > first


def test_two_missed_beats_and_it_is_out(database: Database) -> None:
    join(database, ONE, TWO)
    silent_for(database, "one", 2 * 60)
    assert alive(database) == {"one": True, "two": True}
    silent_for(database, "one", 31)
    assert alive(database) == {"one": False, "two": True}
    with database.beside() as catalogue:
        assert not catalogue.replicas.beat("one", IDLE)
        assert not catalogue.replicas.beat("nobody", IDLE)
        assert catalogue.replicas.beat("two", ReplicaLoad(requests=3, adapters=2, adapter_bytes=7))
    with database.read() as catalogue:
        two = next(row for row in catalogue.replicas.list() if row.id == "two")
    assert (two.requests, two.adapters, two.adapter_bytes) == (3, 2, 7)
    assert two.seen_at > two.started_at


def test_another_state_of_a_base_is_refused_while_the_first_is_there(database: Database) -> None:
    other = replace(TWO, bases={"tiny": "sha256:" + "2" * 64})
    join(database, ONE)
    with pytest.raises(Incompatible, match=r"'tiny' is in another state here \(sha256:222.* than on the server one at"):
        join(database, other)
    assert alive(database) == {"one": True}
    join(database, replace(other, id="three", bases={"another": "sha256:" + "2" * 64}))
    silent_for(database, "one", 1000)
    join(database, other)
    with pytest.raises(Incompatible):
        join(database, ONE)


def test_of_two_that_start_at_once_with_other_states_one_is_refused(database: Database) -> None:
    def start(number: int) -> bool:
        try:
            join(database, replace(ONE, id=f"r{number}", bases={"tiny": f"sha256:{number}"}))
        except Incompatible:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(start, range(4))) == 1


def test_who_leaves_is_gone_and_who_was_out_for_long_is_forgotten(database: Database) -> None:
    join(database, ONE, TWO)
    with database.beside() as catalogue:
        catalogue.replicas.leave("one")
    assert alive(database) == {"two": True}
    silent_for(database, "two", 3601)
    assert alive(database) == {"two": False}
    join(database, ONE)
    assert alive(database) == {"one": True}
    join(database, replace(ONE, places=3))
    with database.read() as catalogue:
        assert [row.places for row in catalogue.replicas.list()] == [3]


def test_a_beat_does_not_wait_for_those_who_write(database: Database, databases: Databases) -> None:
    if databases.kind == "sqlite":
        pytest.skip("SQLite has one writer, and one server")
    join(database, ONE)
    with ThreadPoolExecutor(1) as pool, database.write() as writer:
        writer.audit.record("a", "b", key_id=None, request_id=None, detail={})

        def beat() -> bool:
            with database.beside() as catalogue:
                return catalogue.replicas.beat("one", IDLE)

        assert pool.submit(beat).result(timeout=20)
