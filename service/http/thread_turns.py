"""Whose work in a thread is next: keys take turns, so that nobody waits for all that another key has sent.

The framework's threads serve whoever comes first: hundreds of requests of one key would be served before the next one
of another, and that one's key would not even be looked at before. Gate says who asks (`asking`); routes call
`in_thread` instead of the framework's `run_in_threadpool`, and `bodies` has routes that are no coroutines, and large
bodies that are to be parsed, wait for their turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from anyio import to_thread
from anyio.lowlevel import RunVar
from starlette.concurrency import run_in_threadpool

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Turns:
    """At most `most` at once, and of one key three quarters of that, so that another begins at once.

    A place that gets free goes to the key with the fewest, of equals to the one whose last turn is longest ago. Of one
    event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_of_one = max(1, most * 3 // 4)
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # those first whose last turn is longest ago

    async def take(self, key_id: str) -> None:
        """Wait until it is the turn of a key, which then has a place."""
        if key_id not in self._waiting and self._may(key_id):
            self._held[key_id] += 1
        else:
            await self._wait(key_id)

    async def _wait(self, key_id: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came in the same round of the event loop
                self.give_back(key_id)
            raise

    def give_back(self, key_id: str) -> None:
        """Give up a place, to whoever is next."""
        self._held[key_id] -= 1
        if not self._held[key_id]:
            del self._held[key_id]
        while self._waiting and (able := [one for one in self._waiting if self._may(one)]):
            self._next(min(able, key=lambda one: self._held[one]))  # the first of equals

    def _may(self, key_id: str) -> bool:
        return self._held[key_id] < self._most_of_one and self._held.total() < self._most

    def _next(self, key_id: str) -> None:
        turns = self._waiting.pop(key_id)
        turn = turns.popleft()
        if turns:
            self._waiting[key_id] = turns  # behind the others
        if not turn.cancelled():  # whoever waited for it has not gone away
            turn.set_result(None)
            self._held[key_id] += 1


asking: ContextVar[str | None] = ContextVar("the key that asks in this request", default=None)
"""None where nobody has to say who they are."""
_threads: RunVar[Turns] = RunVar("turns of the threads that serve requests")
_parsing: RunVar[Turns] = RunVar("turns to parse large bodies")


class Turn:
    """A turn of whoever asks, in one of several Turns, as a context."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._key_id = asking.get() or ""

    async def __aenter__(self) -> None:
        """Wait for it."""
        await self._turns.take(self._key_id)

    async def __aexit__(self, *_: object) -> None:
        """It is over."""
        self._turns.give_back(self._key_id)


def thread_turn() -> Turn:
    """A turn for work in one thread.

    A part of the threads is left to what is short and asked for by nobody yet: to see whose a key is.
    """
    found = _threads.get(None)
    if found is None:
        found = Turns(max(1, int(to_thread.current_default_thread_limiter().total_tokens) * 3 // 4))
        _threads.set(found)
    return Turn(found)


def parsing_turn() -> Turn:
    """A turn to have a large body parsed: one at a time, for what they become takes memory."""
    found = _parsing.get(None)
    if found is None:
        found = Turns(1)
        _parsing.set(found)
    return Turn(found)


async def in_thread(work: Callable[Given, Answer], *args: Given.args, **named: Given.kwargs) -> Answer:
    """What `work` gives, which a thread does once it is the turn of whoever asks."""
    async with thread_turn():
        return await run_in_threadpool(work, *args, **named)
