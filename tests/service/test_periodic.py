"""Work that is repeated in a thread: it survives failures, which are logged once an outage, and ends with a call."""

from __future__ import annotations

import logging
import threading

import pytest

from registry.errors import Busy
from service.periodic import Periodic


def test_failures_end_nothing_and_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = iter([None, Busy("full"), Busy("full"), RuntimeError("a bug"), None])
    called: list[object] = []
    ended = threading.Event()

    def work() -> None:
        called.append(outcome := next(outcomes, StopIteration))
        if outcome is StopIteration:
            ended.set()
        elif isinstance(outcome, Exception):
            raise outcome

    periodic = Periodic("counting", 0.001, work, last=lambda: called.append("last"))
    with caplog.at_level(logging.INFO, "soup.periodic"):
        periodic.start()
        assert ended.wait(30)
        assert periodic.stop(seconds=30)
    assert (called[:5], called[-1]) == ([None, *called[1:4], None], "last")
    assert [record.message for record in caplog.records] == [
        "counting: full",
        "counting failed",
        "counting: succeeds again",
    ]


def test_one_that_never_started_stops_at_once() -> None:
    assert Periodic("idle", 1.0, lambda: None).stop(seconds=0)
