"""Puts the pages into an application, and gives Gate their door. Called by `app`, where the settings have pages."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from registry.errors import NotFound
from service.access.sessions import Sessions
from service.http.pages import (
    adapter,
    addresses,
    assets,
    audit,
    bulk,
    compare,
    cook,
    domain_map,
    engine,
    jobs,
    keys,
    matrix,
    models,
    playground,
    push,
    selectors,
    sign_in,
    soup,
    trainings,
    usage,
)
from service.http.pages.door import Door, is_looked_at
from service.http.pages.page import PageRoute, shown

if TYPE_CHECKING:
    from service.runtime import Runtime

NOWHERE = 404
files = APIRouter(route_class=PageRoute, include_in_schema=False)
PAGES = (
    *(files, sign_in.pages, models.pages, bulk.pages, push.pages, adapter.pages, soup.pages, cook.pages, jobs.pages),
    *(playground.pages, trainings.pages, selectors.pages, compare.pages, domain_map.pages, usage.pages, keys.pages),
    *(matrix.pages, audit.pages, engine.pages),
)


@files.get(addresses.ASSET)
async def asset(request: Request, name: str) -> Response:
    """A style sheet, script or picture."""
    return assets.answer(request, name)


def install(app: FastAPI, runtime: Runtime) -> Door | None:
    """Add the pages to `app`; None where the settings leave them out."""
    settings = runtime.settings
    if not settings.pages:
        return None
    sessions = Sessions(runtime.database, runtime.key_watch, seconds=settings.pages_session_seconds)
    app.state.sessions = sessions
    for router in PAGES:
        app.include_router(router)
    return Door(sessions, settings, app.router.routes)


def tell_browsers_of_nothing(app: FastAPI) -> None:
    """Have a browser that looks where nothing is find a page; others are told as before, by the handler there is."""
    others = app.exception_handlers[HTTPException]

    async def told(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == NOWHERE and is_looked_at(request.scope):
            return shown(request, "error.html", error=NotFound("There is nothing at this path."))
        answer = others(request, error)
        return await answer if isinstance(answer, Awaitable) else answer

    app.add_exception_handler(HTTPException, told)
