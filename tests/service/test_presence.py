"""A server's beat, whatever its requests do with the database."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.catalogue import Database
from service.presence import Presence
from service.settings import Settings
from tests.registry.catalogue.test_replicas import last_beats
from tests.service.cluster import until

pytestmark = pytest.mark.slow


def test_a_server_beats_while_its_requests_hold_every_connection(postgres_url: str, tmp_path: Path) -> None:
    ours, observer = Database(postgres_url, pool_size=1), Database(postgres_url, pool_size=1)
    presence = Presence(ours, Settings(data=tmp_path, database_url=postgres_url, replica_beat_seconds=0.1), bases={})
    presence.join()
    try:
        with ours.read():
            first = last_beats(observer)
            until(lambda: last_beats(observer) != first, "a beat")
    finally:
        presence.leave()
    assert last_beats(observer) == {}
    for database in (ours, observer):
        database.close()


@pytest.mark.parametrize(("busy", "lock", "statement"), [(2.0, "2s", "4s"), (30.0, "5s", "10s")])
def test_a_write_beside_others_waits_for_seconds_at_most(
    postgres_url: str, busy: float, lock: str, statement: str
) -> None:
    database = Database(postgres_url, pool_size=1, busy_seconds=busy)
    with database.engine.connect() as connection:
        connection.execution_options(soup_mode="unlocked").begin()
        for name, most in (("lock_timeout", lock), ("statement_timeout", statement)):
            assert connection.exec_driver_sql(f"SHOW {name}").scalar() == most
    database.close()
