"""The class of every route, which checks a body before FastAPI parses it: the key's scopes, size, time and JSON.

Nothing of a body is read before the scopes are checked, its size is counted while it arrives, and a large body is
parsed in a thread. JSON that two parsers could read differently (duplicate keys, NaN, lone surrogates) is refused. A
route without a JSON body (blobs, GET) gets its body untouched, within the same time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from inspect import iscoroutinefunction
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from registry.errors import Cancelled, InvalidParameter, TooSlow
from registry.files import JsonCount, loads_strict
from registry.names import KeyScope
from service.http.requests.body_limits import (
    MAX_KEYS,
    Account,
    BodyLimit,
    BodyMemory,
    check_announced,
    limit_of,
    too_large,
    too_many,
)
from service.http.security.auth import allowed, scopes_of
from service.http.thread_turns import parse_in_turn, thread_turn
from service.settings import Settings

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
NO_BODY = object()
SLOW_BODY_SECONDS = 1.0
"""A body that takes longer is authenticated again when it is complete: its key may have been revoked meanwhile."""
API_PREFIX, OPENAI_TAG = "/v1/", "inference"
"""Prefix of our own API, and the tag of the routes in it that OpenAI's API has too."""


class Bodies:
    """State shared by the request bodies of one application: the settings, and the bytes in memory."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.memory = BodyMemory(settings.max_json_bytes_held)


class CheckedRoute(APIRoute):
    """A route that checks the key before the body, and the body before FastAPI parses it.

    Routes of our own API refuse unknown query parameters, since a misspelt filter would list everything. Routes that
    OpenAI's API has too ignore them.
    """

    def get_route_handler(self) -> Handler:
        """Return FastAPI's handler behind the checks that this route needs."""
        handler = super().get_route_handler()
        if not iscoroutinefunction(self.endpoint):
            handler = _in_turn(handler)
        if self.path_format.startswith(API_PREFIX) and OPENAI_TAG not in self.tags:
            handler = _with_known_query(handler, list(_query_names(self.dependant)), scopes_of(self.dependant))
        if self.body_field is None:
            return handler
        scopes, limit = scopes_of(self.dependant), limit_of(self.endpoint)
        assert scopes, f"{self.path} takes a body: its signature must name the scopes to send one"

        async def handle_body(request: Request) -> Response:
            principal = allowed(request, scopes)
            value = await _read_json(request, principal.key_id, limit)
            return await handler(ParsedRequest(request, value))

        return handle_body

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, and release the memory of its body at the end."""
        bodies: Bodies = scope["app"].state.bodies
        account = bodies.memory.account()
        scope.setdefault("state", {})["body_account"] = account
        try:
            await super().handle(scope, TimedReceive(receive, bodies.settings.body_seconds), send)
        finally:
            account.close()


def _query_names(dependant: Dependant) -> Iterator[str]:
    """Yield the names of the query parameters of a route and of its dependencies."""
    for parameter in dependant.query_params:
        model = parameter.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from model.model_fields
        else:
            yield parameter.alias
    for dependency in dependant.dependencies:
        yield from _query_names(dependency)


def _with_known_query(handler: Handler, names: Sequence[str], scopes: tuple[KeyScope, ...]) -> Handler:
    """Return a handler that refuses query parameters not in `names`; it checks the key's scopes first."""
    hint = f"known are {', '.join(names)}" if names else "it takes none"

    async def check_and_handle(request: Request) -> Response:
        for name in request.query_params:
            if name not in names:
                if scopes:
                    allowed(request, scopes)
                raise InvalidParameter(
                    f"Query parameter {name[:80]!r} is not known to this call; {hint}.", param=name[:80]
                )
        return await handler(request)

    return check_and_handle


def _in_turn(handler: Handler) -> Handler:
    """Return a handler that waits for a turn of the request's key, for routes that run in a thread."""

    async def wait_and_handle(request: Request) -> Response:
        async with thread_turn():
            return await handler(request)

    return wait_and_handle


class TimedReceive:
    """`receive` with a time limit for each piece of the body, and none for messages after it."""

    def __init__(self, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self._is_complete = False

    async def __call__(self) -> Message:
        """Return the next message; raises TooSlow."""
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._seconds):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(
                f"The rest of the body did not arrive within {self._seconds:g} seconds (SOUP_BODY_SECONDS)."
            ) from None
        self._is_complete = not message.get("more_body", False)
        return message


class ParsedRequest(Request):
    """A request whose body has been read and parsed, for FastAPI, which checks `body` and reads `json`."""

    def __init__(self, request: Request, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Return a placeholder, empty if there was no body: the bytes are no longer in memory."""
        return b"" if self._value is NO_BODY else b"read"

    async def json(self) -> Any:
        """Return the parsed body."""
        return self._value


async def _read_json(request: Request, key_id: str, limit: BodyLimit) -> Any:
    """Return the parsed body, NO_BODY if it is empty; its values are counted while it arrives.

    The limit of a call allows more texts and numbers; the number of lists and objects, which cost the most memory, has
    one limit for all calls. Raises InvalidParameter for another content type, TooLarge for too many values, and what
    `read_body` and `parse_json` raise.
    """
    settings: Settings = request.app.state.bodies.settings
    content_type = request.headers.get("content-type", "")
    count, max_values, max_containers = JsonCount(), limit.values_of(settings), settings.max_json_values

    def check(piece: bytes) -> None:
        if piece and not is_json(content_type):
            raise InvalidParameter("The body must be a JSON object sent with 'content-type: application/json'.")
        count.add(piece)
        if count.values > max_values:
            raise too_many("values", max_values)
        if count.containers > max_containers:
            raise too_many("lists and objects", max_containers)

    body = await read_body(request, key_id, limit, settings, check)
    return await parse_in_turn(parse_json, body) if body else NO_BODY


async def read_body(
    request: Request, key_id: str, limit: BodyLimit, settings: Settings, check: Callable[[bytes], None] | None = None
) -> bytearray:
    """Return the bytes of a body, counted for a key while they arrive; `check` is called with each piece.

    Raises TooLarge (at once if Content-Length announces it), Busy, TooSlow, Cancelled, Unauthenticated if the key was
    revoked while a slow body arrived, and what `check` raises.
    """
    most, body, start = limit.bytes_of(settings), bytearray(), time.monotonic()
    account: Account = request.state.body_account
    check_announced(request.headers.get("content-length", ""), most, settings)
    try:
        async for piece in request.stream():
            if len(body) + len(piece) > most:
                raise too_large(most, settings)
            account.take(key_id, len(piece))
            if check is not None:
                check(piece)
            body += piece
    except ClientDisconnect as error:
        raise Cancelled("The client went away.") from error
    if time.monotonic() - start >= SLOW_BODY_SECONDS:
        request.state.principal = await request.state.authenticate_again(request.scope)
    return body


def is_json(content_type: str) -> bool:
    """Return True if FastAPI takes a content type for JSON."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def parse_json(body: bytes | bytearray) -> Any:
    """Parse a body; raises InvalidParameter unless it is JSON that every parser reads the same way."""
    return loads_strict(body, subject="The body", error=InvalidParameter, max_keys=MAX_KEYS)
