"""No key has all connections or all threads: how many answers it may have under way, and whose work is next."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import Busy
from service.http.security.answer_limits import AnswerLimits
from service.http.thread_turns import Turn, Turns, current_key_id

# --- answers under way ----------------------------------------------------------------------------


def as_many_as_there_are(limits: AnswerLimits, key: str, stack: ExitStack) -> int:
    taken = 0
    with suppress(Busy):
        while True:
            stack.enter_context(limits.acquire(key))
            taken += 1
    return taken


def test_whoever_takes_all_it_gets_leaves_places_to_others() -> None:
    limits = AnswerLimits(64)
    with ExitStack() as stack:
        assert [as_many_as_there_are(limits, key, stack) for key in "abcdefg"] == [32, 16, 8, 4, 2, 1, 1]
        assert as_many_as_there_are(limits, "h", stack) == 1, "a key that has none gets one"
    with ExitStack() as stack:
        assert as_many_as_there_are(limits, "a", stack) == 32, "all are given back"


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
async def test_whoever_does_not_go_away_is_served(most: int, asked: list[tuple[str, bool, int]]) -> None:
    """Tasks begin, some are cancelled while they wait, run, or get their turn; no place is lost."""

    work = Work(most)
    work.free.set()
    tasks = []
    for key, leaves, later in asked:
        tasks.append((work.begin(key), leaves))
        await rounds(later)
        if leaves:
            tasks[-1][0].cancel()
    await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
    assert all(not task.cancelled() or leaves for task, leaves in tasks)
    await asyncio.wait_for(asyncio.gather(*[work.begin("d") for _ in range(most)]), 30)
