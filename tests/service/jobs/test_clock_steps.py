"""A clock that is set while a server runs: what is queued runs, and nothing goes for an age that it never had."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta

import pytest

from service.jobs.clock_steps import DISTRUST, ClockSteps

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
DAY = DISTRUST.total_seconds()


class Clocks:
    """The machine's clock and the one that cannot be set."""

    def __init__(self) -> None:
        self.wall, self.seconds = BEGAN, 100.0
        self.steps = ClockSteps(wall=lambda: self.wall, seconds=lambda: self.seconds)

    def passes(self, seconds: float, *, set_by: timedelta = timedelta()) -> bool:
        """Time passes, and the clock is set; whether it is steady then."""
        self.seconds += seconds
        self.wall += timedelta(seconds=seconds) + set_by
        return self.steps.is_steady()


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


def test_time_that_passes_is_no_step(clocks: Clocks) -> None:
    assert all(clocks.passes(seconds) for seconds in (0.01, 3600, 90 * DAY))


def test_a_suspended_machine_sets_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = dict.fromkeys((time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC), 100.0)
    monkeypatch.setattr(time, "clock_gettime", seconds.__getitem__)
    steps = ClockSteps(wall=lambda: BEGAN + timedelta(seconds=seconds[time.CLOCK_BOOTTIME]))
    seconds[time.CLOCK_BOOTTIME] += 8 * 3600
    assert steps.is_steady()


def test_what_a_time_server_corrects_is_none(clocks: Clocks) -> None:
    assert clocks.passes(3600, set_by=timedelta(seconds=40))
    assert clocks.passes(3600, set_by=-timedelta(seconds=40))


def test_set_forward_it_is_doubted_for_a_day_and_the_log_says_so_once(
    clocks: Clocks, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "soup.jobs"):
        assert not clocks.passes(3600, set_by=timedelta(days=40))
        assert not clocks.passes(DAY - 1)
        assert clocks.passes(1)
    assert caplog.messages == [
        "the clock was set forward by 40 days, 0:00:00: nothing is removed for its age within the next day"
    ]


def test_put_right_again_nothing_was_removed(clocks: Clocks) -> None:
    assert not clocks.passes(3600, set_by=timedelta(days=40))
    assert not clocks.passes(3600, set_by=-timedelta(days=40))
    assert clocks.passes(DAY)


def test_set_back_things_are_younger_and_stay(clocks: Clocks) -> None:
    assert clocks.passes(3600, set_by=-timedelta(days=40))
