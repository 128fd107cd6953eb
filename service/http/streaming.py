"""Waiting for what the engine computes, whole or token by token as server-sent events, until the client is gone.

Used by every route that infers; what an answer looks like is not known here. The engine's thread only hands values
over (`call_soon_threadsafe`); the event loop only waits. However a request ends, its tickets are cancelled, so that
the engine never works for nobody.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import CancelledError as TicketCancelled
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from registry.errors import Cancelled, SoupError, Unavailable
from service.engine import Delta, Engine, GenerateRequest, Generation, ScoreRequest, Ticket
from service.http import problems

STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Streams pass proxies unbuffered."""
JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
"""Made once: `json.dumps` would make one for every token."""
DONE = "data: [DONE]\n\n"
JSON_OR_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "JSON, or a stream of it."}
}
"""What the schema says of a route whose answer is streamed where the client asks for it."""


async def finish(
    request: Request, engine: Engine, asked: Sequence[GenerateRequest] | Sequence[ScoreRequest]
) -> list[Any]:
    """What the engine answers to all of `asked`; raises the first error, and Cancelled where the client goes away."""
    tickets = await run_in_threadpool(engine.submit_all, asked)
    waiting = asyncio.gather(*(asyncio.wrap_future(ticket) for ticket in tickets))
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


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- streams --------------------------------------------------------------------------------------


class TokenStream:
    """The tokens of several generate requests as they come: (prompt number, Delta), then each prompt's Generation."""

    def __init__(self, engine: Engine, requests: Sequence[GenerateRequest]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Delta | None]] = asyncio.Queue()
        self._engine = engine
        self._requests = [replace(request, on_token=partial(self._put, i)) for i, request in enumerate(requests)]
        self._first: tuple[int, Delta | None] | None = None
        self.tickets: list[Ticket] = []

    async def start(self, request: Request) -> None:
        """Submit, and wait for the first token, so that what fails at once fails with its own status."""
        self.tickets = await run_in_threadpool(self._engine.submit_all, self._requests)
        for number, ticket in enumerate(self.tickets):
            ticket.add_done_callback(partial(self._ended, number))
        try:
            self._first = await unless_gone(request, asyncio.ensure_future(self._queue.get()))
            number, delta = self._first
            if delta is None:
                self._result(number)
        except BaseException:
            self.cancel()
            raise

    async def events(self) -> AsyncIterator[tuple[int, Delta | Generation]]:
        """Everything in the order it comes; raises what the engine raises."""
        left = len(self.tickets)
        while left:
            number, delta = self._first or await self._queue.get()
            self._first = None
            if delta is None:
                left -= 1
                yield number, self._result(number)
            else:
                yield number, delta

    def cancel(self) -> None:
        """Drop what is not finished."""
        for ticket in self.tickets:
            ticket.cancel()

    def _result(self, number: int) -> Generation:
        try:
            result: Generation = self.tickets[number].result(0)
        except TicketCancelled as error:
            raise Unavailable("The engine stopped before the answer was complete.") from error
        return result

    def _ended(self, number: int, _: Any) -> None:
        self._put(number, None)

    def _put(self, number: int, delta: Delta | None) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (number, delta))


class EventStream(StreamingResponse):
    """Chunks as server-sent events, [DONE] as the last; their source is cancelled however they end."""

    media_type = "text/event-stream"

    def __init__(
        self, chunks: AsyncIterator[BaseModel], *, cancel: Callable[[], None], headers: Mapping[str, str]
    ) -> None:
        super().__init__(_lines(chunks), headers={**STREAM_HEADERS, **headers})
        self._cancel = cancel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send, and cancel whatever is left when the client goes away."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._cancel()


async def _lines(chunks: AsyncIterator[BaseModel]) -> AsyncIterator[str]:
    """One event a chunk; an error is the last event, in the shape OpenAI's client raises from."""
    try:
        async for chunk in chunks:
            yield event(chunk)
    except SoupError as error:
        yield event(problems.body_of(error))
    else:
        yield DONE


def event(value: BaseModel) -> str:
    """One server-sent event of a value's JSON; what is unset is left out."""
    return f"data: {JSON.encode(value.model_dump(exclude_unset=True))}\n\n"
