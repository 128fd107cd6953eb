"""Waiting for what the engine computes, whole or token by token as server-sent events, until the client is gone.

Used by every route that infers; what an answer looks like is not known here. The engine's thread only hands values
over, all tokens of a step at once (`Outbox`); the event loop only waits. Both take turns at the interpreter's lock,
so that what one of them does for a token keeps the other from the next. However a request ends, its tickets are
cancelled, so that the engine never works for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import CancelledError as TicketCancelled
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from registry.errors import Cancelled, SoupError, Unavailable
from service.engine import Delta, Engine, GenerateRequest, Generation, ScoreRequest, Ticket
from service.http import problems
from service.http.answers.events import DONE, Events, event
from service.http.thread_turns import in_thread

STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Streams pass proxies unbuffered."""
JSON_OR_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "JSON, or a stream of it."}
}
"""What the schema says of a route whose answer is streamed where the client asks for it."""


async def finish(
    request: Request, engine: Engine, asked: Sequence[GenerateRequest] | Sequence[ScoreRequest]
) -> list[Any]:
    """What the engine answers to all of `asked`; raises the first error, and Cancelled where the client goes away."""
    tickets = await in_thread(engine.submit_all, asked)
    waiting = asyncio.gather(*(asyncio.wrap_future(ticket) for ticket in tickets))
    waiting.add_done_callback(_looked_at)
    try:
        results: list[Any] = await unless_gone(request, waiting)
        return results
    finally:
        for ticket in tickets:
            ticket.cancel()


async def unless_gone(request: Request, waiting: asyncio.Future[Any]) -> Any:
    """What `waiting` gives; raises Cancelled, and cancels it, where the client disconnects before."""
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise Cancelled("The client went away.")
        if waiting.cancelled():
            raise Cancelled("The engine dropped the request.")
        return waiting.result()
    finally:
        waiting.cancel()
        gone.cancel()


def _looked_at(waiting: asyncio.Future[Any]) -> None:
    """Have asyncio not log what became of a future that nobody waits for: its client has gone away."""
    if not waiting.cancelled():
        waiting.exception()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- streams --------------------------------------------------------------------------------------


class Outbox:
    """What the engine's thread has for the streams of one event loop, until they are woken up for all of it at once.

    To wake an event loop is a system call, which gives it the interpreter's lock, too: once a step, not once a token.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._things: deque[tuple[TokenStream, int, Delta | None]] = deque()
        self._woken = False

    def put(self, stream: TokenStream, number: int, delta: Delta | None) -> None:
        """A token of a stream's prompt `number`, or None at its end; nobody is woken up. From any thread."""
        self._things.append((stream, number, delta))

    def flush(self) -> None:
        """Have everything delivered soon. From any thread."""
        if self._woken or not self._things:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the event loop is closed: nobody listens
            self._things.clear()

    def _deliver(self) -> None:
        self._woken = False  # before the last look: what comes after it is flushed again
        while self._things:
            stream, number, delta = self._things.popleft()
            stream.take(number, delta)


def outbox_of(request: Request) -> Outbox:
    """The outbox that all streams of an application share in the running event loop."""
    state, loop = request.app.state, asyncio.get_running_loop()
    found: Outbox | None = getattr(state, "outbox", None)
    if found is None or found.loop is not loop:
        found = state.outbox = Outbox(loop)
    return found


class TokenStream:
    """The tokens of several generate requests as they come, then each prompt's Generation."""

    def __init__(self, engine: Engine, requests: Sequence[GenerateRequest], outbox: Outbox) -> None:
        self._engine = engine
        self._outbox = outbox
        self._requests = [
            replace(request, on_token=partial(outbox.put, self, number), on_step=outbox.flush)
            for number, request in enumerate(requests)
        ]
        self._there: list[tuple[int, Delta | None]] = []
        self._news = asyncio.Event()
        self.tickets: list[Ticket] = []

    async def start(self, request: Request) -> None:
        """Submit, and wait for the first token, so that what fails at once fails with its own status."""
        self.tickets = await in_thread(self._engine.submit_all, self._requests)
        for number, ticket in enumerate(self.tickets):
            ticket.add_done_callback(partial(self._ended, number))
        try:
            await unless_gone(request, asyncio.ensure_future(self._news.wait()))
            number, delta = self._there[0]
            if delta is None:
                self.result(number)
        except BaseException:
            self.cancel()
            raise

    def take(self, number: int, delta: Delta | None) -> None:
        """A token of prompt `number`, or None at its end. In the event loop."""
        self._there.append((number, delta))
        self._news.set()

    async def arrived(self) -> list[tuple[int, Delta | None]]:
        """What has come since the last call, at least one thing, in its order: prompt numbers with tokens or None."""
        if not self._there:
            self._news.clear()
            await self._news.wait()
        found, self._there = self._there, []
        return found

    def result(self, number: int) -> Generation:
        """What came of a prompt that has ended; raises what the engine raises."""
        try:
            result: Generation = self.tickets[number].result(0)
        except TicketCancelled as error:
            raise Unavailable("The engine stopped before the answer was complete.") from error
        return result

    def cancel(self) -> None:
        """Drop what is not finished."""
        for ticket in self.tickets:
            ticket.cancel()

    def _ended(self, number: int, _: Any) -> None:
        self._outbox.put(self, number, None)
        self._outbox.flush()


class EventStream(StreamingResponse):
    """Server-sent events of a stream that has started; it is cancelled however they end."""

    media_type = "text/event-stream"

    def __init__(self, stream: TokenStream, events: Events, *, headers: Mapping[str, str]) -> None:
        super().__init__(_parts(stream, events), headers={**STREAM_HEADERS, **headers})
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send, and cancel whatever is left when the client goes away."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.cancel()


async def _parts(stream: TokenStream, events: Events) -> AsyncIterator[bytes]:
    """The events, those that are ready together in one part, [DONE] as the last.

    An error is the last event instead, in the shape OpenAI's client raises from.
    """
    ready = events.first()
    left = len(stream.tickets)
    try:
        while left:
            for number, delta in await stream.arrived():
                left -= delta is None
                ready += events.of(number, stream.result(number) if delta is None else delta)
            if left and ready:
                yield ready.encode()
                ready = ""
        ready += events.last() + DONE
    except SoupError as error:
        ready += event(problems.body_of(error))
    yield ready.encode()
