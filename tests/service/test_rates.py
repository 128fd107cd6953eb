"""Buckets of requests and tokens: what is taken, what wears off, what is given back, and when to come again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import RateLimitExceeded
from service import rates as rates_module
from service.http.models.metering import duration
from service.rates import Rates, SharedRates, Want


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rates(clock: Clock) -> Rates:
    return Rates(clock)


def want(amount: int, limit: int = 60, subject: str = "Key 'a'") -> Want:
    return Want(subject, "tokens", limit, amount)


def remaining(rates: Rates | SharedRates, limit: int = 60) -> int:
    left = rates.remaining([want(0, limit)], "tokens")
    assert left is not None
    return left.remaining


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
    assert remaining(rates, 40) == 0
    assert remaining(rates, 100) == 50


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


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.floats(0, 40), st.integers(0, 120), st.floats(0, 1)), max_size=40),
)
def test_never_more_than_the_limit_and_what_wears_off(limit: int, asked: list[tuple[float, int, float]]) -> None:
    clock = Clock()
    rates, used, began = Rates(clock), 0, clock.now
    for pause, amount, share in asked:
        clock.now += pause
        one = want(min(amount, limit), limit)
        try:
            rates.take([one])
        except RateLimitExceeded as late:
            clock.now += late.retry_after
            rates.take([one])
        needed = int(one.amount * share)
        rates.settle(one, needed)
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
