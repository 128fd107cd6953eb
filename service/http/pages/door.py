"""How Gate lets a browser in: who signed in, by the session that it holds, and what it is told where nobody did."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from registry.errors import SoupError, Unauthenticated
from service.access.keys import Principal
from service.access.sessions import Sessions
from service.http import problems
from service.http.pages import addresses
from service.http.pages.cookies import SESSION, cookie_name, held, is_secure, own_cookies
from service.settings import Settings

SCRIPTED = "hx-request"
"""Header of a request that a page's script makes for a part of a page."""


def is_looked_at(scope: Scope) -> bool:
    """Whether whoever asks for a path takes a page for an answer, as browsers do, and has no key as programs do."""
    headers = Headers(scope=scope)
    takes_pages = "text/html" in headers.get("accept", "") and "authorization" not in headers
    return takes_pages and scope["method"] in {"GET", "HEAD"}


class Door:
    """The pages' part of Gate."""

    def __init__(self, sessions: Sessions, settings: Settings, routes: Sequence[BaseRoute]) -> None:
        self._sessions = sessions
        self._settings = settings
        self._routes = routes

    def takes(self, scope: Scope) -> bool:
        """Whether a request comes without a key of its own, and is for a page or a browser's for nothing at all."""
        if addresses.is_page(scope["path"]):
            return "authorization" not in Headers(scope=scope)
        return self._is_nothing(scope)

    def is_open(self, scope: Scope) -> bool:
        """Whether it is for whoever has not signed in as well: that there is nothing at a path is told to anybody."""
        if addresses.is_open(scope["method"], scope["path"]):
            return True
        return not addresses.is_page(scope["path"]) and held(scope, SESSION, self._settings) is None

    def _is_nothing(self, scope: Scope) -> bool:
        """Whether a browser asks to see a path where nothing is."""
        return is_looked_at(scope) and all(route.matches(scope)[0] is Match.NONE for route in self._routes)

    def cookies(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """The headers with which the browser sends the cookies that it has from here."""
        return [(b"cookie", f"{name}={value}".encode()) for name, value in own_cookies(scope)]

    def principal(self, scope: Scope) -> Principal:
        """Who signed in, whose session is left in the request's state; raises Unauthenticated."""
        token = held(scope, SESSION, self._settings)
        if token is None:
            raise Unauthenticated("Sign in with a key of this server, or send 'Authorization: Bearer sk-soup-...'.")
        principal = self._sessions.principal(token)
        scope.setdefault("state", {})["session"] = token
        return principal

    def refused(self, scope: Scope, error: SoupError) -> Response:
        """What whoever may not go on is told: a browser without a session goes to where one signs in."""
        path: str = scope["path"]
        if not isinstance(error, Unauthenticated) or addresses.is_for_programs(path):
            return problems.response_of(error)
        query = scope.get("query_string", b"").decode("latin-1")
        asked = path + (f"?{query}" if query else "") if scope["method"] == "GET" else ""
        if path in addresses.KEPT:
            asked = path
        place = addresses.SIGN_IN + (f"?next={quote(asked, safe='')}" if asked not in {"", addresses.HOME} else "")
        if SCRIPTED in Headers(scope=scope):
            return problems.response_of(error, {"hx-redirect": place})
        answer = RedirectResponse(place, status_code=303, headers={"cache-control": "no-store"})
        if held(scope, SESSION, self._settings) is not None:
            secure = is_secure(scope, self._settings)
            name = cookie_name(SESSION, secure=secure)
            answer.delete_cookie(name, path="/", secure=secure, httponly=True, samesite="strict")
        return answer
