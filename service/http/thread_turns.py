"""Fair use of the thread pool: keys take turns, so that no key waits for all requests of another.

The framework's threads serve requests in order of arrival: hundreds of requests of one key would run before the next
request of another key, or even before its authentication. Gate sets the key of a request (`current_key_id`). Routes
call `in_thread` instead of the framework's `run_in_threadpool`. In `bodies`, routes that are not coroutines and the
parsing of large bodies wait for their turn.
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

P = ParamSpec("P")
T = TypeVar("T")
LARGE_BODY = 16 * 1024
"""Bytes; larger bodies are parsed in a thread, one at a time, to keep the event loop and the memory free."""


class Turns:
    """Fair semaphore: at most `most` turns at once, and for one key three quarters of them, so that others can begin.

    A free turn goes to the waiting key with the fewest running turns; among equals, to the one whose last turn is
    longest ago. For use in one event loop.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._most_per_key = max(1, most * 3 // 4)
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by key; first the one longest without a turn

    async def take(self, key_id: str) -> None:
        """Wait for a turn of a key."""
        if key_id not in self._waiting and self._may_run(key_id):
            self._running[key_id] += 1
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
        """End a turn of a key and start the turns that are next."""
        self._running[key_id] -= 1
        if not self._running[key_id]:
            del self._running[key_id]
        while candidates := [waiting for waiting in self._waiting if self._may_run(waiting)]:
            self._start_next(min(candidates, key=self._running.__getitem__))  # the first of equals

    def _may_run(self, key_id: str) -> bool:
        return self._running[key_id] < self._most_per_key and self._running.total() < self._most

    def _start_next(self, key_id: str) -> None:
        turns = self._waiting.pop(key_id)
        turn = turns.popleft()
        if turns:
            self._waiting[key_id] = turns  # at the end of the order
        if not turn.cancelled():
            turn.set_result(None)
            self._running[key_id] += 1


current_key_id: ContextVar[str | None] = ContextVar("key of the current request", default=None)
"""None for requests that need no key."""
_threads: RunVar[Turns] = RunVar("turns of the threads that serve requests")
_parsing: RunVar[Turns] = RunVar("turns to parse large bodies")


class Turn:
    """Asynchronous context that holds a turn of the current request's key."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._key_id = current_key_id.get() or ""

    async def __aenter__(self) -> None:
        await self._turns.take(self._key_id)

    async def __aexit__(self, *_: object) -> None:
        self._turns.give_back(self._key_id)


def thread_turn() -> Turn:
    """Return a turn for work in one thread.

    A quarter of the threads is reserved for authentication, which is short and happens before the key is known.
    """
    turns = _threads.get(None)
    if turns is None:
        turns = Turns(max(1, int(to_thread.current_default_thread_limiter().total_tokens) * 3 // 4))
        _threads.set(turns)
    return Turn(turns)


async def parse_in_turn(parse: Callable[[bytearray], T], body: bytearray) -> T:
    """Parse a body; a large one in a thread, and one at a time, since parsed bodies take memory."""
    if len(body) <= LARGE_BODY:
        return parse(body)
    turns = _parsing.get(None)
    if turns is None:
        turns = Turns(1)
        _parsing.set(turns)
    async with Turn(turns):
        return await run_in_threadpool(parse, body)  # without a thread turn, since others wait for this parse


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread, once it is the turn of the current request's key, and return its result."""
    async with thread_turn():
        return await run_in_threadpool(work, *args, **kwargs)
