"""The class of every route: who may send a body, how large, how fast; counted as it comes, and parsed once.

A body costs nothing before its key may send it, little before it is known to be small enough, and is never parsed on
the event loop where that takes long. JSON that two parsers could read differently (duplicate keys, NaN, lone
surrogates) is refused. A route without a JSON body (blobs, GET) gets what comes untouched, within the same patience.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from registry.errors import Cancelled, InvalidParameter, TooSlow
from registry.files import JsonCount, loads_strict
from registry.names import KeyScope
from service.http.requests.body_limits import (
    MAX_KEYS,
    Account,
    BodyLimit,
    HeldBytes,
    check_announced,
    limit_of,
    too_large,
    too_many,
)
from service.http.security.auth import allowed, scopes_of
from service.http.thread_turns import parsing_turn, thread_turn
from service.settings import Settings

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
LARGE_JSON = 16 * 1024
"""Bodies beyond this are parsed in a thread, one at a time, so that the event loop and the memory stay free."""
NOTHING = object()
OURS, FOREIGN = "/v1/", "inference"
"""Where the paths of our own routes begin, and the tag of those among them that others have too."""


class Bodies:
    """What the bodies of one application share: the settings, and what requests hold."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.held = HeldBytes(settings.max_json_bytes_held)


class CheckedRoute(APIRoute):
    """A route that looks at the key before the body, and at the body before FastAPI does.

    One of our own refuses query parameters that it does not know, since a filter with a typo would list everything.
    Those that clients of others know (inference, as OpenAI has it) let them pass.
    """

    def get_route_handler(self) -> Handler:
        """The handler, behind the checks where the route takes a JSON body."""
        answer = super().get_route_handler()
        if not iscoroutinefunction(self.endpoint):
            answer = _in_turn(answer)
        if self.path_format.startswith(OURS) and FOREIGN not in self.tags:
            answer = _strict(answer, list(_queries(self.dependant)), scopes_of(self.dependant))
        if self.body_field is None:
            return answer
        scopes, limit = scopes_of(self.dependant), limit_of(self.endpoint)
        assert scopes, f"{self.path} takes a body: its signature must say who may send one"

        async def checked(request: Request) -> Response:
            principal = allowed(request, scopes)
            value = await _value(request, principal.key_id, limit)
            return await answer(ReadRequest(request, value))

        return checked

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; whatever becomes of it, the bytes of its body are given back at the end."""
        bodies: Bodies = scope["app"].state.bodies
        account = bodies.held.account()
        scope.setdefault("state", {})["body_account"] = account
        try:
            await super().handle(scope, Patient(receive, bodies.settings.body_seconds), send)
        finally:
            account.close()


def _queries(dependant: Dependant) -> Iterator[str]:
    """The query parameters of a route and of what it depends on."""
    yield from (one.alias for one in dependant.query_params)
    for below in dependant.dependencies:
        yield from _queries(below)


def _strict(answer: Handler, known: Sequence[str], scopes: tuple[KeyScope, ...]) -> Handler:
    """A handler that refuses query parameters which are none of these, for a key that may ask at all."""
    listed = f"known are {', '.join(known)}" if known else "it takes none"

    async def handler(request: Request) -> Response:
        for name in request.query_params:
            if name not in known:
                if scopes:
                    allowed(request, scopes)
                raise InvalidParameter(
                    f"Query parameter {name[:80]!r} is not known to this call; {listed}.", param=name[:80]
                )
        return await answer(request)

    return handler


def _in_turn(answer: Handler) -> Handler:
    """A handler that needs a thread, called when it is the turn of whoever asks."""

    async def handler(request: Request) -> Response:
        async with thread_turn():
            return await answer(request)

    return handler


class Patient:
    """`receive` that waits so long for the next piece of a body, and without end for what comes after it."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self._whole = False

    async def __call__(self) -> Message:
        """The next message; raises TooSlow."""
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._seconds):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(f"Nothing more of the body came for {self._seconds:g} seconds (SOUP_BODY_SECONDS).") from None
        self._whole = not message.get("more_body", False)
        return message


class ReadRequest(Request):
    """A request whose body has been read: what FastAPI asks of it are the value, and whether there was a body."""

    def __init__(self, request: Request, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Empty where there was no body; the bytes of one are not kept."""
        return b"" if self._value is NOTHING else b"read"

    async def json(self) -> Any:
        """The value of the body."""
        return self._value


async def _value(request: Request, key: str, limit: BodyLimit) -> Any:
    """The JSON value of the body, NOTHING for none; raises what is wrong with it."""
    bodies: Bodies = request.app.state.bodies
    body = await _read(request, key, limit, bodies.settings)
    if not body:
        return NOTHING
    if len(body) <= LARGE_JSON:
        return parsed(body)
    async with parsing_turn():
        return await run_in_threadpool(parsed, body)  # without a turn there: others wait for this one


async def _read(request: Request, key: str, limit: BodyLimit, settings: Settings) -> bytearray:
    """The bytes of the body; raises TooLarge, Busy, TooSlow, Cancelled, or InvalidParameter for what is not JSON."""
    count, kind = BodyCount(limit, settings), request.headers.get("content-type", "")

    def look(piece: bytes) -> None:
        if piece and not is_json(kind):
            raise InvalidParameter("The body must be a JSON object sent with 'content-type: application/json'.")
        count.add(piece)

    return await gathered(request, key, limit, settings, look)


async def gathered(
    request: Request, key: str, limit: BodyLimit, settings: Settings, look: Callable[[bytes], None] | None = None
) -> bytearray:
    """The bytes of a body, counted for a key while they come, and each piece shown to `look`.

    Raises TooLarge, before any is read where that is announced, Busy, TooSlow, Cancelled, and what `look` raises.
    """
    most, body = limit.bytes_of(settings), bytearray()
    account: Account = request.state.body_account
    check_announced(request.headers.get("content-length", ""), most, settings)
    try:
        async for piece in request.stream():
            if len(body) + len(piece) > most:
                raise too_large(most, settings)
            account.take(key, len(piece))
            if look is not None:
                look(piece)
            body += piece
    except ClientDisconnect as error:
        raise Cancelled("The client went away.") from error
    return body


class BodyCount:
    """The values of a body as it comes; raises TooLarge as soon as they are more than its call takes.

    Only texts and numbers may be as many as the call is for: lists and objects cost the most, and no call is for many.
    """

    def __init__(self, limit: BodyLimit, settings: Settings) -> None:
        self._count = JsonCount()
        self._values = limit.values_of(settings)
        self._containers = settings.max_json_values

    def add(self, piece: bytes) -> None:
        """Count a piece of the body."""
        self._count.add(piece)
        if self._count.values > self._values:
            raise too_many("values", self._values)
        if self._count.containers > self._containers:
            raise too_many("lists and objects", self._containers)


def is_json(content_type: str) -> bool:
    """Whether a content type is JSON, as the framework sees it."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def parsed(body: bytes | bytearray) -> Any:
    """The value of a body; raises InvalidParameter unless it is JSON that every parser reads the same way."""
    return loads_strict(body, what="The body", error=InvalidParameter, max_keys=MAX_KEYS)
