"""No key has all connections or all threads: how many answers it may have under way, and whose work is next."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import Busy, RateLimitExceeded
from service.http.problems import TOO_MUCH
from service.http.security.answer_limits import AnswerLimits
from service.http.security.throttle import APART, LONGEST, OTHERS, REMEMBERED, KeyThrottle
from service.http.thread_turns import Turn, Turns, current_key_id
from tests.service.servers import World

# --- answers under way ----------------------------------------------------------------------------


def acquire_all(limits: AnswerLimits, key: str, stack: ExitStack) -> int:
    count = 0
    with suppress(Busy):
        while True:
            stack.enter_context(limits.acquire(key))
            count += 1
    return count


def test_whoever_takes_all_it_gets_leaves_places_to_others() -> None:
    limits = AnswerLimits(64)
    with ExitStack() as stack:
        assert [acquire_all(limits, key, stack) for key in "abcdefg"] == [32, 16, 8, 4, 2, 1, 1]
        assert acquire_all(limits, "h", stack) == 1, "a key that has none gets one"
    with ExitStack() as stack:
        assert acquire_all(limits, "a", stack) == 32, "all are given back"


def test_a_refusal_says_how_many_and_takes_nothing() -> None:
    limits = AnswerLimits(2)
    with limits.acquire("a"):
        for _ in range(2):
            with pytest.raises(Busy, match=r"1 running answers.* room for only 1 more") as refused:
                limits.acquire("a")
            assert refused.value.retry_after == 1
    with limits.acquire("a"):
        pass


# --- work in threads ------------------------------------------------------------------------------


class Work:
    """Tasks that take a turn of a key, and note who was served."""

    def __init__(self, most: int) -> None:
        self.turns = Turns(most)
        self.most = most
        self.running: list[str] = []
        self.served: list[str] = []
        self.free = asyncio.Event()

    def begin(self, key: str) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._task(key))

    async def _task(self, key: str) -> None:
        current_key_id.set(key)
        async with Turn(self.turns):
            self.served.append(key)
            self.running.append(key)
            assert len(self.running) <= self.most
            try:
                await self.free.wait()
            finally:
                self.running.remove(key)


async def rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_another_key_begins_at_once_beside_a_flood() -> None:
    work = Work(8)
    tasks = [work.begin("flood") for _ in range(100)]
    await rounds()
    assert work.running == ["flood"] * 6
    tasks.append(work.begin("calm"))
    await rounds()
    assert work.running == ["flood"] * 6 + ["calm"]
    work.free.set()
    await asyncio.gather(*tasks)
    assert len(work.served) == 101


@pytest.mark.anyio
async def test_keys_that_wait_take_turns() -> None:
    work = Work(1)
    tasks = [work.begin(key) for key in ["a", *"aaaa", *"bb", "c"]]
    await rounds()
    work.free.set()
    await asyncio.gather(*tasks)
    assert "".join(work.served) == "aabcabaa"


@pytest.mark.anyio
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 3)), min_size=1, max_size=40),
)
async def test_whoever_does_not_go_away_is_served(most: int, arrivals: list[tuple[str, bool, int]]) -> None:
    """Tasks begin, some are cancelled while they wait, run, or get their turn; no place is lost."""

    work = Work(most)
    work.free.set()
    tasks = []
    for key, leaves, later in arrivals:
        tasks.append((work.begin(key), leaves))
        await rounds(later)
        if leaves:
            tasks[-1][0].cancel()
    await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
    assert all(not task.cancelled() or leaves for task, leaves in tasks)
    await asyncio.wait_for(asyncio.gather(*[work.begin("d") for _ in range(most)]), 30)


# --- after a refusal ------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause of a real server, which worlds that other modules opened have set to 0."""
    monkeypatch.setattr("service.http.security.throttle.APART", APART)


class Time:
    """A clock that stands still but for what is slept."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def throttle(time: Time) -> KeyThrottle:
    """A KeyThrottle without a real clock, while another key is active."""
    throttle = KeyThrottle(TOO_MUCH, clock=lambda: time.now, sleep=time.sleep)
    turns(throttle, "other")
    return throttle


def turns(throttle: KeyThrottle, key: str, count: int = 1) -> None:
    async def all_of_them() -> None:
        for _ in range(count):
            await throttle.turn(key)

    asyncio.run(all_of_them())


@pytest.mark.parametrize("status", [413, 429])
def test_after_a_refusal_they_begin_one_by_one(throttle: KeyThrottle, time: Time, status: int) -> None:
    throttle.record("loud", status)
    turns(throttle, "loud", 3)
    assert time.slept == [0.0, APART, 2 * APART]
    turns(throttle, "calm", 3)
    assert len(time.slept) == 3


@pytest.mark.parametrize("status", [200, 400, 401, 404, 500, 503])
def test_any_other_answer_holds_nobody(throttle: KeyThrottle, time: Time, status: int) -> None:
    throttle.record("key", status)
    turns(throttle, "key", 3)
    assert time.slept == []


def test_who_waits_as_told_notices_nothing(throttle: KeyThrottle, time: Time) -> None:
    throttle.record("key", 429)
    time.now += REMEMBERED
    turns(throttle, "key", 5)
    assert time.slept == []


def test_while_no_other_key_asks_nobody_is_held(throttle: KeyThrottle, time: Time) -> None:
    time.now += OTHERS
    throttle.record("key", 429)
    turns(throttle, "key", 200)
    assert time.slept == []
    turns(throttle, "other")
    turns(throttle, "key", 2)
    assert time.slept == [0.0, APART]


def test_keys_that_send_no_more_requests_are_forgotten(throttle: KeyThrottle, time: Time) -> None:
    time.now += OTHERS
    turns(throttle, "active")
    throttle.record("key", 429)
    turns(throttle, "key")
    assert throttle._last_request_at.keys() == {"active", "key"}


def test_who_goes_on_is_held_as_long_as_that_lasts(throttle: KeyThrottle, time: Time) -> None:
    """Each request is refused again; those that wait have their turns one after the other, also much later."""
    for _ in range(30):
        throttle.record("key", 429)
        turns(throttle, "key")
        time.now += APART / 10
    assert time.slept[-1] == pytest.approx(29 * APART - 29 * APART / 10)


def test_too_many_that_wait_are_refused_at_once(throttle: KeyThrottle) -> None:
    throttle.record("key", 429)
    with pytest.raises(RateLimitExceeded, match="did not wait") as refused:
        turns(throttle, "key", 200)
    assert refused.value.retry_after == LONGEST


def test_a_server_holds_a_key_to_it_and_no_other(world: World, monkeypatch: Any) -> None:
    delayed_keys: list[str] = []
    real = KeyThrottle.turn

    async def watched(self: KeyThrottle, key_id: str) -> None:
        if key_id in self._keys:
            delayed_keys.append(key_id)
        await real(self, key_id)

    monkeypatch.setattr(KeyThrottle, "turn", watched)
    loud, calm = (world.headers(world.key(["write"], ["acme"])) for _ in range(2))
    body = '{"name": [' + "[]," * 150_000 + "[]]}"
    headers = {**loud, "content-type": "application/json"}
    assert world.client.post("/v1/adapters", content=body, headers=headers).status_code == 413
    assert world.client.get("/v1/jobs", headers=calm).status_code == 403
    assert delayed_keys == []
    assert world.client.post("/v1/adapters", content=body, headers=headers).status_code == 413
    assert len(delayed_keys) == 1
