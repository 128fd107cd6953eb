"""Installs the pages in an application. Called by `app` if the settings enable the pages."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.status import HTTP_404_NOT_FOUND

from registry.errors import NotFound
from service.access.sessions import Sessions
from service.http.pages import (
    activity,
    adapter,
    assets,
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
)
from service.http.pages.browser_auth import SessionAuth, accepts_page
from service.http.pages.page import PageRoute, render_page

if TYPE_CHECKING:
    from service.runtime import Runtime

files = APIRouter(route_class=PageRoute, include_in_schema=False)
PAGES = (
    *(files, sign_in.pages, models.pages, bulk.pages, push.pages, adapter.pages, soup.pages, cook.pages, jobs.pages),
    *(playground.pages, selectors.pages, compare.pages, domain_map.pages, activity.pages, keys.pages),
    *(matrix.pages, engine.pages),
)


@files.get("/assets/{name}")
async def asset(request: Request, name: str) -> Response:
    """A style sheet, script or icon."""
    return assets.asset_response(request, name)


def install_pages(app: FastAPI, runtime: Runtime) -> SessionAuth | None:
    """Add the pages to `app` and return their authentication; None if the settings disable the pages."""
    if not runtime.settings.pages:
        return None
    app.state.sessions = Sessions(runtime.database, runtime.key_watch, seconds=runtime.settings.pages_session_seconds)
    for router in PAGES:
        app.include_router(router)
    return SessionAuth(app.state.sessions, runtime.settings, pages=PAGES, routes=app.router.routes)


def install_not_found_page(app: FastAPI) -> None:
    """Show a page to a browser that requests a path that does not exist; keep the handler of other HTTP errors."""
    default_handler = app.exception_handlers[HTTPException]

    async def handle(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTP_404_NOT_FOUND and accepts_page(request.scope):
            return render_page(request, "error.html", error=NotFound("There is nothing at this path."))
        response = default_handler(request, error)
        return await response if isinstance(response, Awaitable) else response

    app.add_exception_handler(HTTPException, handle)
