"""Wait for the engine's results, complete or token by token as server-sent events, until the client disconnects.

Used by every route that infers; the shape of answers is not known here. The engine's thread only hands values over, all
tokens of a step at once (`Outbox`), and the event loop only waits. Both share the interpreter's lock: work of either
for a token delays the next token. However a request ends, its tickets are cancelled, so that the engine does not work
for a client that is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import CancelledError as TicketCancelled
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from registry.errors import Cancelled, SoupError, Unavailable
from service.engine import Delta, GenerateRequest, Generation, ScoreRequest, Ticket
from service.engine.text_calls import EngineCalls
from service.http import problems
from service.http.answers.events import DONE, Events, event
from service.http.models.metering import answer_headers
from service.http.models.named_models import ResolvedModel
from service.http.thread_turns import in_thread

STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Headers that keep caches and proxies from storing or buffering a stream."""
JSON_OR_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "JSON, or a stream of it."}
}
"""`responses` of a route whose answer is streamed on request."""


async def finish(
    request: Request, engine: EngineCalls, engine_requests: Sequence[GenerateRequest] | Sequence[ScoreRequest]
) -> list[Any]:
    """Return the engine's results of all requests; raises the first error, and Cancelled if the client disconnects."""
    tickets = await in_thread(engine.submit_all, engine_requests)
    pending = asyncio.gather(*(asyncio.wrap_future(ticket) for ticket in tickets))
    pending.add_done_callback(_retrieve_exception)
    try:
        results: list[Any] = await unless_disconnected(request, pending)
        return results
    finally:
        for ticket in tickets:
            ticket.cancel()


async def unless_disconnected(request: Request, pending: asyncio.Future[Any]) -> Any:
    """Return the result of `pending`; if the client disconnects first, cancel it and raise Cancelled."""
    disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({pending, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not pending.done():
            raise Cancelled("The client went away.")
        if pending.cancelled():
            raise Cancelled("The engine dropped the request.")
        return pending.result()
    finally:
        pending.cancel()
        disconnected.cancel()


def _retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging the error of a future that is not awaited after the client has disconnected."""
    if not future.cancelled():
        future.exception()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- streams --------------------------------------------------------------------------------------


class Outbox:
    """Queue of tokens from the engine's thread for the streams of one event loop, delivered together once a step.

    Waking an event loop is a system call that also hands over the interpreter's lock, too costly for every token.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._queue: deque[tuple[TokenStream, int, Delta | None]] = deque()
        self._is_scheduled = False

    def put(self, stream: TokenStream, number: int, delta: Delta | None) -> None:
        """Queue a token of a stream's prompt `number`, or None at its end, without delivering it. Thread-safe."""
        self._queue.append((stream, number, delta))

    def flush(self) -> None:
        """Schedule the delivery of the queue in the event loop. Thread-safe."""
        if self._is_scheduled or not self._queue:
            return
        self._is_scheduled = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the event loop is closed: nobody listens
            self._queue.clear()

    def _deliver(self) -> None:
        self._is_scheduled = False  # before the queue is read, so that a later token is flushed again
        while self._queue:
            stream, number, delta = self._queue.popleft()
            stream.take(number, delta)


def outbox_of(request: Request) -> Outbox:
    """Return the outbox that all streams of an application share in the running event loop."""
    state, loop = request.app.state, asyncio.get_running_loop()
    outbox: Outbox | None = getattr(state, "outbox", None)
    if outbox is None or outbox.loop is not loop:
        outbox = state.outbox = Outbox(loop)
    return outbox


class TokenStream:
    """The tokens of several generate requests as they arrive, then the Generation of each prompt."""

    def __init__(self, engine: EngineCalls, requests: Sequence[GenerateRequest], outbox: Outbox) -> None:
        self._engine = engine
        self._outbox = outbox
        self._requests = [
            replace(request, on_token=partial(outbox.put, self, number), on_step=outbox.flush)
            for number, request in enumerate(requests)
        ]
        self._received: list[tuple[int, Delta | None]] = []
        self._has_received = asyncio.Event()
        self.tickets: list[Ticket] = []

    async def start(self, request: Request) -> None:
        """Submit the requests and wait for the first token, so that early errors are answered with their own status."""
        self.tickets = await in_thread(self._engine.submit_all, self._requests)
        for number, ticket in enumerate(self.tickets):
            ticket.add_done_callback(partial(self._on_done, number))
        try:
            await unless_disconnected(request, asyncio.ensure_future(self._has_received.wait()))
            number, delta = self._received[0]
            if delta is None:
                self.result(number)
        except BaseException:
            self.cancel()
            raise

    def take(self, number: int, delta: Delta | None) -> None:
        """Receive a token of prompt `number`, or None at its end. Called in the event loop."""
        self._received.append((number, delta))
        self._has_received.set()

    async def receive(self) -> list[tuple[int, Delta | None]]:
        """Wait for tokens and return all since the last call: prompt numbers, each with a token or None at its end."""
        if not self._received:
            self._has_received.clear()
            await self._has_received.wait()
        received, self._received = self._received, []
        return received

    def result(self, number: int) -> Generation:
        """Return the generation of a prompt that has ended; raises what the engine raises."""
        try:
            result: Generation = self.tickets[number].result(0)
        except TicketCancelled as error:
            raise Unavailable("The engine stopped before the answer was complete.") from error
        return result

    def cancel(self) -> None:
        """Cancel the requests that are not finished."""
        for ticket in self.tickets:
            ticket.cancel()

    def _on_done(self, number: int, _: Any) -> None:
        self._outbox.put(self, number, None)
        self._outbox.flush()


class Answers(Protocol):
    """Builder of an answer, whole from the generations of its prompts."""

    @property
    def model(self) -> ResolvedModel:
        """The model that answers."""

    def whole(self, generations: list[Generation]) -> dict[str, Any]:
        """The answer in one piece, as JSON."""


async def respond(
    request: Request, engine: EngineCalls, answers: Answers, requests: Sequence[GenerateRequest], events: Events | None
) -> Response:
    """Return the answer to generate requests: a stream of `events`, or without any the whole of it."""
    if events is not None:
        stream = TokenStream(engine, requests, outbox_of(request))
        await stream.start(request)
        return EventStream(stream, events, headers=answer_headers(request, answers.model))
    whole = answers.whole(await finish(request, engine, requests))
    return JSONResponse(whole, headers=answer_headers(request, answers.model))


class EventStream(StreamingResponse):
    """Response with the server-sent events of a stream that has started; it cancels the stream however it ends."""

    media_type = "text/event-stream"

    def __init__(self, stream: TokenStream, events: Events, *, headers: Mapping[str, str]) -> None:
        super().__init__(_event_chunks(stream, events), headers={**STREAM_HEADERS, **headers})
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, and cancel the stream if the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.cancel()


async def _event_chunks(stream: TokenStream, events: Events) -> AsyncIterator[bytes]:
    """Yield the events, those that are ready at once in one chunk, and [DONE] at the end.

    After an error the last event is the error instead, in the shape OpenAI's client raises from.
    """
    chunk = events.first()
    running = len(stream.tickets)
    try:
        while running:
            for number, delta in await stream.receive():
                running -= delta is None
                chunk += events.encode(number, stream.result(number) if delta is None else delta)
            if running and chunk:
                yield chunk.encode()
                chunk = ""
        chunk += events.last() + DONE
    except SoupError as error:
        chunk += event(problems.body_of(error))
    yield chunk.encode()
