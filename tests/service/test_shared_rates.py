"""Rates that servers count together: what one takes the other lacks, and what was not needed comes back to both."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from registry.catalogue import Database
from registry.errors import RateLimitExceeded, Unavailable
from service.rates import SharedRates
from tests.postgres import Postgres
from tests.service.test_rates import remaining, want

pytestmark = pytest.mark.slow


@pytest.fixture
def servers(postgres_url: str) -> Iterator[list[SharedRates]]:
    """The rates of two servers, each with connections of its own."""
    databases = [Database(postgres_url, pool_size=6) for _ in range(2)]
    yield [SharedRates(database) for database in databases]
    for database in databases:
        database.close()


def test_what_one_server_took_another_has_not(servers: list[SharedRates]) -> None:
    one, two = servers
    one.take([want(40)])
    with pytest.raises(
        RateLimitExceeded, match=r"Key 'a' has 60 tokens a minute; 2\d are left and 50 are needed"
    ) as late:
        two.take([want(50)])
    assert 20 <= late.value.retry_after <= 30
    two.take([want(20)])
    assert remaining(two) <= 5
    used = one.used([want(0), want(0, subject="Key 'new'")])  # read from the database, and so what the other took
    assert 55 <= used[want(0).name] <= 60
    assert used["Key 'new'", "tokens"] == 0
    two.take([want(60, subject="Key 'b'")])


def test_it_is_all_or_nothing(servers: list[SharedRates]) -> None:
    one, two = servers
    one.take([want(55, subject="Namespace 'n'")])
    with pytest.raises(RateLimitExceeded, match="Namespace 'n'"):
        two.take([want(30), want(30, subject="Namespace 'n'")])
    one.take([want(60)])


def test_what_was_not_needed_is_there_for_both(servers: list[SharedRates]) -> None:
    one, two = servers
    taken = want(60)
    one.take([taken])
    one.settle(taken, 10)
    one.take([want(30)])  # where it ended it counts at once
    one.settle(want(30), 30)
    one.write()
    two.take([want(20)])
    with pytest.raises(RateLimitExceeded):
        two.take([want(30)])


def test_more_than_was_taken_is_a_debt(servers: list[SharedRates]) -> None:
    one, two = servers
    one.take([want(10)])
    one.settle(want(10), 100)
    one.write()
    with pytest.raises(RateLimitExceeded) as late:
        two.take([want(1)])
    assert late.value.retry_after > 20


def test_requests_at_once_take_no_more_than_there_is(servers: list[SharedRates]) -> None:
    began = time.monotonic()
    limit, start = 30, threading.Barrier(8)

    def take(number: int) -> int:
        start.wait()
        taken = 0
        for turn in range(20):
            wants = [want(1, limit), want(1, 10_000, f"Namespace '{turn % 3}'")]
            try:
                servers[number % 2].take(wants if turn % 2 else wants[::-1])
            except RateLimitExceeded:
                continue
            taken += 1
        return taken

    with ThreadPoolExecutor(8) as pool:
        taken = sum(pool.map(take, range(8)))
    worn = (time.monotonic() - began) * limit / 60
    assert limit <= taken <= limit + worn + 1


def test_while_the_database_is_away_nothing_is_taken_and_nothing_forgotten(
    postgres: Postgres, postgres_url: str
) -> None:
    database = Database(postgres_url, pool_size=2)
    rates = SharedRates(database)
    taken = want(60)
    rates.take([taken])
    rates.settle(taken, 0)
    postgres.stop()
    try:
        with pytest.raises(Unavailable):
            rates.take([want(1)])
        with pytest.raises(Unavailable):
            rates.write()
    finally:
        postgres.start()
    rates.write()
    rates.take([want(60)])
    database.close()
