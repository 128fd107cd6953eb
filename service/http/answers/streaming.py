"""Wait for the engine's results, complete or token by token as server-sent events, until the client disconnects.

Used by every route that infers; the shape of answers is not known here. However a request ends, its tickets are
cancelled, so that the engine does not work for a client that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from registry.errors import Cancelled, InvalidPrompt, SoupError
from service.engine import GenerateRequest, ScoreRequest
from service.engine.text_calls import EngineCalls
from service.engine.token_stream import Outbox, TokenStream
from service.http import problems
from service.http.answers.events import DONE, event
from service.http.answers.generation import ChatAnswers, ChatEvents, CompletionAnswers, CompletionEvents
from service.http.models.metering import answer_headers
from service.http.thread_turns import in_thread

Events = ChatEvents | CompletionEvents
"""Encoder of a streamed answer, called with the engine's output as it arrives."""
STREAM_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""Headers that keep caches and proxies from storing or buffering a stream."""
JSON_OR_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "JSON, or a stream of it."}
}
"""`responses` of a route whose answer is streamed on request."""


@contextmanager
def prompt_in(param: str) -> Iterator[None]:
    """Name this field of the request in an InvalidPrompt of the engine, which knows no fields."""
    try:
        yield
    except InvalidPrompt as error:
        error.param = param
        raise


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


def outbox_of(request: Request) -> Outbox:
    """Return the outbox that all streams of an application share in the running event loop."""
    state, loop = request.app.state, asyncio.get_running_loop()
    outbox: Outbox | None = getattr(state, "outbox", None)
    if outbox is None or outbox.loop is not loop:
        outbox = state.outbox = Outbox(loop)
    return outbox


async def start(request: Request, engine: EngineCalls, stream: TokenStream) -> None:
    """Submit the requests of a stream and wait for the first token, so that early errors have their own status."""
    await in_thread(stream.submit, engine)
    try:
        await unless_disconnected(request, asyncio.ensure_future(stream.first()))
    except BaseException:
        stream.cancel()
        raise


async def respond(
    request: Request,
    engine: EngineCalls,
    answers: ChatAnswers | CompletionAnswers,
    requests: Sequence[GenerateRequest],
    events: Events | None,
) -> Response:
    """Return the answer to generate requests: a stream of `events`, or without any the whole of it."""
    if events is not None:
        stream = TokenStream(requests, outbox_of(request))
        await start(request, engine, stream)
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
