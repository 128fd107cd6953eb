"""Requests put piece by piece: straight to an application, of which a small one is here, or on a connection.

The small application has routes of ours, for tests of what happens before a route is reached.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Body, FastAPI, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.keys import Principal
from service.http import problems
from service.http.requests.bodies import Bodies, CheckedRoute
from service.http.requests.body_limits import LARGE, PROMPTS, takes
from service.http.security.auth import ModelUser, Reader, Writer
from service.settings import Settings
from tests.service.servers import Live


class Exchange:
    """One request; `headers` are named with underscores."""

    def __init__(self, pieces: Iterator[bytes], *, path: str = "/large", method: str = "POST", **headers: str) -> None:
        self.pieces = pieces
        self.read = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        sent = {"content_type": "application/json", **headers}
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()],
        }

    async def receive(self) -> Message:
        piece = next(self.pieces, None)
        if piece is None:
            return {"type": "http.request", "body": b"", "more_body": False}
        self.read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": True}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")

    async def of(self, app: FastAPI) -> Exchange:
        await app(self.scope, self.receive, self.send)
        return self


def half_sent(
    live: Live, method: str, path: str, data: bytes, *, of: int, **headers: str
) -> http.client.HTTPConnection:
    """A connection on which the beginning of a body of so many bytes has been sent; `headers` have underscores."""
    connection = http.client.HTTPConnection(urlsplit(live.url).netloc, timeout=30)
    connection.putrequest(method, path)
    sent = {"authorization": f"Bearer {live.world.admin}", "content-length": str(of), **headers}
    for name, value in sent.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    connection.send(data)
    return connection


class Keyed:
    """ASGI layer in the place of Gate: the header `x-scopes` is what a key may do, `x-key` which it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        scopes = headers.get(b"x-scopes", b"read write infer").decode().split()
        principal = Principal(headers.get(b"x-key", b"one").decode(), None, frozenset(scopes))
        scope.setdefault("state", {})["principal"] = principal
        await self._app(scope, receive, send)


def checked_app(**settings: Any) -> FastAPI:
    """Routes of every kind: /small and /large take any JSON, /ids token ids, /raw the bytes as they come."""
    app = FastAPI()
    app.state.bodies = Bodies(Settings(**settings))
    router = APIRouter(route_class=CheckedRoute)

    @router.post("/small")
    async def small(body: Annotated[Any, Body()], principal: Writer) -> Any:
        return body

    @router.post("/large")
    @takes(LARGE)
    async def large(body: Annotated[Any, Body()], principal: Writer) -> Any:
        return len(str(body))

    @router.post("/ids")
    @takes(PROMPTS)
    async def ids(body: Annotated[Any, Body()], principal: ModelUser) -> Any:
        return len(body)

    @router.put("/raw")
    async def raw(request: Request, principal: Writer) -> Any:
        return {"pieces": [len(piece) async for piece in request.stream()]}

    @router.get("/look")
    async def look(principal: Reader) -> Any:
        return {}

    app.include_router(router)
    problems.install(app)
    app.add_middleware(Keyed)
    return app
