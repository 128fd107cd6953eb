"""Rates: a whole limit at once and no more, what is told passes then, and several servers count together."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.catalogue import Database
from registry.errors import RateLimitExceeded, Unavailable
from service import rates as rates_module
from service.http.models.metering import duration
from service.rates import Rates, SharedRates, Want
from tests.postgres import Postgres
from tests.service.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def rates(clock: Clock) -> Rates:
    return Rates(clock)


def want(amount: int, limit: int = 60, subject: str = "Key 'a'") -> Want:
    return Want(subject, "tokens", limit, amount)


def remaining(rates: Rates | SharedRates, limit: int = 60) -> int:
    remainder = rates.remaining([want(0, limit)], "tokens")
    return remainder.remaining


def test_a_whole_limit_may_be_taken_at_once_and_no_more(rates: Rates) -> None:
    rates.take([want(60)])
    with pytest.raises(RateLimitExceeded, match=r"Key 'a' has 60 tokens a minute; 0 are left and 1 are needed") as late:
        rates.take([want(1)])
    assert (late.value.retry_after, late.value.param, late.value.code) == (
        1,
        "tokens_per_minute",
        "rate_limit_exceeded",
    )


def test_after_the_seconds_that_were_told_it_passes_and_not_before(rates: Rates, clock: Clock) -> None:
    rates.take([want(50)])
    with pytest.raises(RateLimitExceeded) as late:
        rates.take([want(37)])
    clock.now += late.value.retry_after - 1
    with pytest.raises(RateLimitExceeded):
        rates.take([want(37)])
    clock.now += 1
    rates.take([want(37)])


def test_what_was_not_needed_is_given_back_and_a_debt_wears_off(rates: Rates, clock: Clock) -> None:
    rates.take([want(40)])
    rates.settle(want(40), 10)
    assert remaining(rates) == 50
    rates.take([want(10)])
    rates.settle(want(10), 100)
    assert remaining(rates) == 0
    with pytest.raises(RateLimitExceeded) as late:
        rates.take([want(1)])
    assert late.value.retry_after == 51
    clock.now += 51
    rates.take([want(1)])


def test_all_or_nothing(rates: Rates) -> None:
    rates.take([want(60, subject="Namespace 'full'")])
    with pytest.raises(RateLimitExceeded, match="'full'"):
        rates.take([want(5), want(5, subject="Namespace 'full'")])
    assert remaining(rates) == 60


def test_a_limit_that_changes_holds_from_then_on(rates: Rates) -> None:
    rates.take([want(50)])
    assert [remaining(rates, limit) for limit in (40, 100)] == [0, 50]


def test_full_buckets_are_forgotten_and_others_are_not(
    rates: Rates, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_module, "MAX_BUCKETS", 2)
    for subject in "bcd":
        rates.take([want(10, subject=subject)])
    rates.settle(want(0), 600)  # a debt of ten minutes
    clock.now += 120
    rates.take([want(1, subject="e")])
    assert sorted(name for name, _ in rates._buckets) == ["Key 'a'", "e"]
    assert remaining(rates) == 0


def test_buckets_that_only_mirror_a_database_are_forgotten_too(
    rates: Rates, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_module, "MAX_BUCKETS", 2)
    for subject in "abcd":
        rates.know(want(10, subject=subject), 10)
    clock.now += 120
    rates.know(want(1, subject="e"), 1)
    assert [name for name, _ in rates._buckets] == ["e"]


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.floats(0, 40), st.integers(0, 120), st.floats(0, 1)), max_size=40),
)
def test_never_more_than_the_limit_and_what_wears_off(limit: int, script: list[tuple[float, int, float]]) -> None:
    clock = Clock(1000.0)
    rates, used, began = Rates(clock), 0, clock.now
    for pause, amount, share in script:
        clock.now += pause
        reservation = want(min(amount, limit), limit)
        try:
            rates.take([reservation])
        except RateLimitExceeded as late:
            clock.now += late.retry_after
            rates.take([reservation])
        needed = int(reservation.amount * share)
        rates.settle(reservation, needed)
        used += needed
        assert used <= limit + (clock.now - began) * limit / 60 + 1e-3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.02, "20ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (3600, "1h0m0s"),
        (3661.25, "1h1m1.25s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- rates that several servers share -------------------------------------------------------------


@pytest.fixture
def servers(postgres_url: str) -> Iterator[list[SharedRates]]:
    """The rates of two servers, each with connections of its own."""
    databases = [Database(postgres_url, pool_size=6) for _ in range(2)]
    yield [SharedRates(database) for database in databases]
    for database in databases:
        database.close()


@pytest.mark.slow
def test_what_one_server_took_another_has_not(servers: list[SharedRates]) -> None:
    first, second = servers
    first.take([want(40)])
    with pytest.raises(
        RateLimitExceeded, match=r"Key 'a' has 60 tokens a minute; 2\d are left and 50 are needed"
    ) as late:
        second.take([want(50)])
    assert 20 <= late.value.retry_after <= 30
    second.take([want(20)])
    assert remaining(second) <= 5
    used = first.used([want(0), want(0, subject="Key 'new'")])  # read from the database, and so what the other took
    assert 55 <= used[want(0).name] <= 60
    assert used["Key 'new'", "tokens"] == 0
    second.take([want(60, subject="Key 'b'")])


@pytest.mark.slow
def test_it_is_all_or_nothing(servers: list[SharedRates]) -> None:
    first, second = servers
    first.take([want(55, subject="Namespace 'n'")])
    with pytest.raises(RateLimitExceeded, match="Namespace 'n'"):
        second.take([want(30), want(30, subject="Namespace 'n'")])
    first.take([want(60)])


@pytest.mark.slow
def test_what_was_not_needed_is_there_for_both(servers: list[SharedRates]) -> None:
    first, second = servers
    reservation = want(60)
    first.take([reservation])
    first.settle(reservation, 10)
    first.take([want(30)])  # where it ended it counts at once
    first.settle(want(30), 30)
    first.write()
    second.take([want(20)])
    with pytest.raises(RateLimitExceeded):
        second.take([want(30)])


@pytest.mark.slow
def test_more_than_was_taken_is_a_debt(servers: list[SharedRates]) -> None:
    first, second = servers
    first.take([want(10)])
    first.settle(want(10), 100)
    first.write()
    with pytest.raises(RateLimitExceeded) as late:
        second.take([want(1)])
    assert late.value.retry_after > 20


@pytest.mark.slow
def test_requests_at_once_take_no_more_than_there_is(servers: list[SharedRates]) -> None:
    began = time.monotonic()
    limit, start = 30, threading.Barrier(8)

    def take(number: int) -> int:
        start.wait()
        admitted = 0
        for turn in range(20):
            wants = [want(1, limit), want(1, 10_000, f"Namespace '{turn % 3}'")]
            try:
                servers[number % 2].take(wants if turn % 2 else wants[::-1])
            except RateLimitExceeded:
                continue
            admitted += 1
        return admitted

    with ThreadPoolExecutor(8) as pool:
        admitted = sum(pool.map(take, range(8)))
    worn = (time.monotonic() - began) * limit / 60
    assert limit <= admitted <= limit + worn + 1


@pytest.mark.slow
def test_while_the_database_is_away_nothing_is_taken_and_nothing_forgotten(
    postgres: Postgres, postgres_url: str
) -> None:
    database = Database(postgres_url, pool_size=2)
    rates = SharedRates(database)
    reservation = want(60)
    rates.take([reservation])
    rates.settle(reservation, 0)
    postgres.stop()
    try:
        for call in (lambda: rates.take([want(1)]), rates.write):
            with pytest.raises(Unavailable):
                call()
    finally:
        postgres.start()
    rates.write()
    rates.take([want(60)])
    database.close()
