"""The pages to sign in with a key and to sign out."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from registry.errors import Unauthenticated
from service.access.sessions import Sessions
from service.http.pages.cookies import SESSION, read_cookie, set_cookie
from service.http.pages.forms import SMALL, Form, takes_form
from service.http.pages.page import PageRoute, redirect_to, render_page
from service.http.routes.keys import Anybody

pages = APIRouter(route_class=PageRoute, include_in_schema=False)
LOCAL_PATH = re.compile(r"/(?!/)[!-\[\]-~]{0,2000}")
"""A path with its query, in ASCII without spaces and backslashes."""


def path_after_sign_in(target: str | None) -> str:
    """`target` if it is a path on this server that a browser cannot read as another host, else the home page."""
    is_safe = LOCAL_PATH.fullmatch(target or "") is not None and not str(target).startswith("/sign-in")
    return str(target) if is_safe else "/"


@pages.get("/sign-in")
def sign_in_page(request: Request, next: Annotated[str | None, Query(max_length=3000)] = None) -> Response:
    """The sign-in form; a server without keys redirects to the home page."""
    if request.app.state.runtime.settings.no_auth:
        return redirect_to("/")
    return render_page(request, "sign_in.html", next=path_after_sign_in(next))


@pages.post("/sign-in")
@takes_form(SMALL)
def sign_in(request: Request, form: Form) -> Response:
    """Start a session, which replaces the browser's previous one, and redirect to the page requested before."""
    previous = read_cookie(request.scope, SESSION, request.app.state.runtime.settings)
    sessions: Sessions = request.app.state.sessions
    target = path_after_sign_in(form.get("next"))
    try:
        token, _ = sessions.begin(form.get("key", "").strip(), request.state.request_id, instead_of=previous)
    except Unauthenticated as error:
        return render_page(request, "sign_in.html", error=error, next=target)
    response = redirect_to(target)
    set_cookie(response, request, SESSION, token)
    return response


@pages.post("/sign-in/out")
@takes_form(SMALL)
def sign_out(request: Request, principal: Anybody) -> Response:
    """End the session and delete its cookie."""
    sessions: Sessions = request.app.state.sessions
    token: str | None = getattr(request.state, "session", None)
    if token is not None:
        sessions.end(token, principal)
    response = redirect_to("/sign-in")
    set_cookie(response, request, SESSION, "")
    return response
