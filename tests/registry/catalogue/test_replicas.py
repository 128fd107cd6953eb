"""Servers by the database's clock: who is alive, who is dead, and who may not join. On SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select

from registry.catalogue import Database
from registry.catalogue.replicas import replicas
from registry.errors import Incompatible
from tests.postgres import Databases
from tests.registry.together import together

BASES = {"tiny": "sha256:" + "1" * 64}
OTHERS = {"tiny": "sha256:" + "2" * 64}


def join(database: Database, id: str, bases: dict[str, str] = BASES) -> None:
    with database.write() as catalogue:
        catalogue.replicas.join(id, bases=bases, beat=timedelta(seconds=60))


def beat(database: Database, id: str) -> bool:
    with database.write_unlocked() as catalogue:
        return catalogue.replicas.beat(id)


def last_beats(database: Database) -> dict[str, int]:
    """The moment of each server's last beat, by its id."""
    with database.engine.connect() as connection:
        return {row.id: row.seen_at for row in connection.execute(select(replicas.c.id, replicas.c.seen_at))}


def silence(database: Database, id: str, seconds: float) -> None:
    """Move a server's last beat back."""
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE replicas SET seen_at = seen_at - {round(seconds * 1e6)} WHERE id = '{id}'")


def test_the_clock_is_the_databases_and_goes_on_within_a_transaction(database: Database) -> None:
    """Else a transaction that waited for its turn would beat for the moment at which it began to wait."""
    join(database, "one")
    first = last_beats(database)["one"]
    with database.write() as catalogue:
        catalogue.audit.record("a", "b", key_id=None, request_id=None, detail={})
        threading.Event().wait(0.005)
        assert catalogue.replicas.beat("one")
    assert last_beats(database)["one"] >= first + 5000


@pytest.mark.parametrize("missed", [1, -1], ids=["silent", "the clock was set back"])
def test_two_missed_beats_and_it_is_dead(database: Database, missed: int) -> None:
    join(database, "one")
    join(database, "two")
    silence(database, "one", missed * 2 * 60)
    assert beat(database, "one")
    silence(database, "one", missed * (2 * 60 + 31))
    assert [beat(database, id) for id in ("one", "nobody", "two")] == [False, False, True]
    join(database, "one")
    assert beat(database, "one")


def test_another_state_of_a_base_is_refused_while_the_first_is_alive(database: Database) -> None:
    join(database, "one")
    with pytest.raises(Incompatible, match=r"'tiny' differs \(sha256:222.* from that of server one \(sha"):
        join(database, "two", OTHERS)
    join(database, "three", {"another": OTHERS["tiny"]})
    assert last_beats(database).keys() == {"one", "three"}
    silence(database, "one", 1000)
    join(database, "two", OTHERS)
    with pytest.raises(Incompatible):
        join(database, "one")


def test_of_two_that_start_at_once_with_other_states_one_is_refused(database: Database) -> None:
    def start(number: int) -> bool:
        try:
            join(database, f"r{number}", {"tiny": f"sha256:{number}"})
        except Incompatible:
            return False
        return True

    assert sum(together(4, start)) == 1


def test_who_leaves_is_gone_and_the_next_to_join_deletes_the_dead(database: Database) -> None:
    join(database, "one")
    join(database, "two")
    with database.write_unlocked() as catalogue:
        catalogue.replicas.leave("one")
    assert last_beats(database).keys() == {"two"}
    silence(database, "two", 151)
    join(database, "one")
    join(database, "one")
    assert last_beats(database).keys() == {"one"}


def test_a_beat_does_not_wait_for_those_who_write(database: Database, databases: Databases) -> None:
    if databases.kind == "sqlite":
        pytest.skip("SQLite has one writer, and one server")
    join(database, "one")
    with ThreadPoolExecutor(1) as pool, database.write() as writer:
        writer.audit.record("a", "b", key_id=None, request_id=None, detail={})
        assert pool.submit(beat, database, "one").result(timeout=20)
