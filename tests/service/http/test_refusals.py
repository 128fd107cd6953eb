"""A key that goes on after a refusal without waiting: its requests begin one by one, and nobody else's do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from registry.errors import RateLimitExceeded
from service.http.problems import TOO_MUCH
from service.http.security.refusals import APART, LONGEST, OTHERS, REMEMBERED, Refusals
from tests.service.servers import World


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause of a real server, which worlds that other modules opened have set to 0."""
    monkeypatch.setattr("service.http.security.refusals.APART", APART)


class Time:
    """A clock that stands still but for what is slept."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))


def refusals() -> tuple[Refusals, Time]:
    """Beside another key that asks."""
    time = Time()
    found = Refusals(TOO_MUCH, clock=lambda: time.now, sleep=time.sleep)
    turns(found, "other")
    return found, time


def turns(found: Refusals, key: str, count: int = 1) -> None:
    async def all_of_them() -> None:
        for _ in range(count):
            await found.turn(key)

    asyncio.run(all_of_them())


@pytest.mark.parametrize("status", [413, 429])
def test_after_a_refusal_they_begin_one_by_one(status: int) -> None:
    found, time = refusals()
    found.record("loud", status)
    turns(found, "loud", 3)
    assert time.slept == [0.0, APART, 2 * APART]
    turns(found, "calm", 3)
    assert len(time.slept) == 3


@pytest.mark.parametrize("status", [200, 400, 401, 404, 500, 503])
def test_any_other_answer_holds_nobody(status: int) -> None:
    found, time = refusals()
    found.record("key", status)
    turns(found, "key", 3)
    assert time.slept == []


def test_who_waits_as_told_notices_nothing() -> None:
    found, time = refusals()
    found.record("key", 429)
    time.now += REMEMBERED
    turns(found, "key", 5)
    assert time.slept == []


def test_while_no_other_key_asks_nobody_is_held() -> None:
    found, time = refusals()
    time.now += OTHERS
    found.record("key", 429)
    turns(found, "key", 200)
    assert time.slept == []
    turns(found, "other")
    turns(found, "key", 2)
    assert time.slept == [0.0, APART]


def test_who_goes_on_is_held_as_long_as_that_lasts() -> None:
    """Each request is refused again; those that wait have their turns one after the other, also much later."""
    found, time = refusals()
    for _ in range(30):
        found.record("key", 429)
        turns(found, "key")
        time.now += APART / 10
    assert time.slept[-1] == pytest.approx(29 * APART - 29 * APART / 10)


def test_too_many_that_wait_are_refused_at_once() -> None:
    found, _ = refusals()
    found.record("key", 429)
    with pytest.raises(RateLimitExceeded, match="did not wait") as refused:
        turns(found, "key", 200)
    assert refused.value.retry_after == LONGEST


def test_a_server_holds_a_key_to_it_and_no_other(world: World, monkeypatch: Any) -> None:
    held: list[str] = []
    real = Refusals.turn

    async def watched(self: Refusals, key_id: str) -> None:
        if key_id in self._keys:
            held.append(key_id)
        await real(self, key_id)

    monkeypatch.setattr(Refusals, "turn", watched)
    loud, calm = (world.headers(world.key(["write"], ["acme"])) for _ in range(2))
    body = '{"name": [' + "[]," * 150_000 + "[]]}"
    headers = {**loud, "content-type": "application/json"}
    assert world.client.post("/v1/adapters", content=body, headers=headers).status_code == 413
    assert world.client.get("/v1/jobs", headers=calm).status_code == 403
    assert held == []
    assert world.client.post("/v1/adapters", content=body, headers=headers).status_code == 413
    assert len(held) == 1
