"""A small application whose routes are ours, for tests of what happens before a route is reached."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from service.access.keys import Principal
from service.http import problems
from service.http.requests.bodies import Bodies, CheckedRoute
from service.http.requests.body_limits import FILES, PROMPTS, takes
from service.http.security.auth import ModelUser, Reader, Writer
from service.settings import Settings


class Keyed:
    """ASGI layer in the place of Gate: the header `x-scopes` is what a key may do, `x-key` which it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        scopes = headers.get(b"x-scopes", b"read write infer").decode().split()
        who = Principal(headers.get(b"x-key", b"one").decode(), None, frozenset(scopes))
        scope.setdefault("state", {})["principal"] = who
        await self._app(scope, receive, send)


def checked_app(**settings: Any) -> FastAPI:
    """Routes of every kind: /small and /large take any JSON, /ids token ids, /raw the bytes as they come."""
    app = FastAPI()
    app.state.bodies = Bodies(Settings(**settings))
    router = APIRouter(route_class=CheckedRoute)

    @router.post("/small")
    async def small(body: Annotated[Any, Body()], who: Writer) -> Any:
        return body

    @router.post("/large")
    @takes(FILES)
    async def large(body: Annotated[Any, Body()], who: Writer) -> Any:
        return len(str(body))

    @router.post("/ids")
    @takes(PROMPTS)
    async def ids(body: Annotated[Any, Body()], who: ModelUser) -> Any:
        return len(body)

    @router.put("/raw")
    async def raw(request: Request, who: Writer) -> Any:
        return {"pieces": [len(piece) async for piece in request.stream()]}

    @router.get("/look")
    async def look(who: Reader) -> Any:
        return {}

    app.include_router(router)
    problems.install(app)
    app.add_middleware(Keyed)
    return app
