"""Authentication of browsers: the principal of a session, and what a browser gets that has none. Used by Gate."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from registry.errors import SoupError, Unauthenticated
from service.access.keys import Principal
from service.access.sessions import Sessions
from service.http import problems
from service.http.pages.cookies import SESSION, page_cookies, read_cookie, set_cookie
from service.http.pages.page import PageRoute, has_json_errors
from service.settings import Settings

HTMX_HEADER = "hx-request"
"""Header of a request that htmx sends to replace a part of a page."""


def accepts_page(scope: Scope) -> bool:
    """Return True if a request accepts HTML and has no key, as browsers' requests do."""
    headers = Headers(scope=scope)
    accepts_html = "text/html" in headers.get("accept", "") and "authorization" not in headers
    return accepts_html and scope["method"] in {"GET", "HEAD"}


class SessionAuth:
    """Authenticates the requests of browsers by their session cookie."""

    def __init__(
        self, sessions: Sessions, settings: Settings, *, pages: Sequence[APIRouter], routes: Sequence[BaseRoute]
    ) -> None:
        self._sessions = sessions
        self._settings = settings
        self._pages = [route.path_regex for router in pages for route in router.routes if isinstance(route, PageRoute)]
        self._routes = routes

    def handles(self, scope: Scope) -> bool:
        """Return True for a request without a key that is for a page, or a browser's for a path that does not exist."""
        if self._is_page(scope["path"]):
            return "authorization" not in Headers(scope=scope)
        return accepts_page(scope) and all(route.matches(scope)[0] is Match.NONE for route in self._routes)

    def is_public(self, scope: Scope) -> bool:
        """Return True if a request needs no session; that a path does not exist is no secret."""
        method, path = scope["method"], scope["path"]
        if path == "/sign-in" or (method in {"GET", "HEAD"} and path.startswith("/assets/")):
            return True
        return not self._is_page(path) and read_cookie(scope, SESSION, self._settings) is None

    def _is_page(self, path: str) -> bool:
        """Return True if a path belongs to the pages."""
        return any(pattern.match(path) for pattern in self._pages)

    def cookie_headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Request headers with the cookies of the pages only."""
        return [(b"cookie", f"{name}={value}".encode()) for name, value in page_cookies(scope)]

    def principal(self, scope: Scope) -> Principal:
        """The principal of the session, whose token is put into the request's state; raises Unauthenticated."""
        token = read_cookie(scope, SESSION, self._settings)
        if token is None:
            raise Unauthenticated("Sign in with a key of this server, or send 'Authorization: Bearer sk-soup-...'.")
        principal = self._sessions.principal(token)
        scope.setdefault("state", {})["session"] = token
        return principal

    def rejection(self, scope: Scope, error: SoupError) -> Response:
        """The response to a request that was refused: without a session a redirect to the sign-in page."""
        path: str = scope["path"]
        if not isinstance(error, Unauthenticated) or has_json_errors(path):
            return problems.response_of(error)
        query = scope.get("query_string", b"").decode("latin-1")
        target = path + (f"?{query}" if query else "") if scope["method"] == "GET" else ""
        if path == "/cook":  # a script fills its form again after the user has signed in
            target = path
        location = "/sign-in" + (f"?next={quote(target, safe='')}" if target not in {"", "/"} else "")
        if HTMX_HEADER in Headers(scope=scope):
            return problems.response_of(error, {"hx-redirect": location})
        response = RedirectResponse(location, status_code=303, headers={"cache-control": "no-store"})
        if read_cookie(scope, SESSION, self._settings) is not None:
            set_cookie(response, Request(scope), SESSION, "")
        return response
