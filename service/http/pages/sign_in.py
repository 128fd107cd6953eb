"""Signing in with a key, and out again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from registry.errors import Unauthenticated
from service.access.sessions import Sessions
from service.http.pages import addresses
from service.http.pages.cookies import SESSION, held, hold
from service.http.pages.forms import FEW, Form, takes_form
from service.http.pages.page import PageRoute, gone_to, shown
from service.http.routes.keys import Anybody
from service.settings import Settings

pages = APIRouter(route_class=PageRoute, include_in_schema=False)


@pages.get(addresses.SIGN_IN)
def sign_in_page(request: Request, next: Annotated[str | None, Query(max_length=3000)] = None) -> Response:
    """The form to sign in; on a server without keys there is nothing to sign in to."""
    if request.app.state.runtime.settings.no_auth:
        return gone_to(addresses.HOME)
    return shown(request, "sign_in.html", next=addresses.place_of(next), problem=None)


@pages.post(addresses.SIGN_IN)
@takes_form(FEW)
def sign_in(request: Request, form: Form) -> Response:
    """Sign in: from then on the browser holds a session, and no former one, and goes where it was going."""
    settings: Settings = request.app.state.runtime.settings
    former = held(request.scope, SESSION, settings)
    sessions: Sessions = request.app.state.sessions
    place = addresses.place_of(form.get("next"))
    try:
        token, _ = sessions.begin(form.get("key", "").strip(), request.state.request_id, instead_of=former)
    except Unauthenticated as error:
        return shown(request, "sign_in.html", error=error, next=place)
    answer = gone_to(place)
    hold(answer, request, SESSION, token)
    return answer


@pages.post(addresses.SIGN_OUT)
@takes_form(FEW)
def sign_out(request: Request, form: Form, principal: Anybody) -> Response:  # noqa: ARG001  # its token was looked at
    """Sign out: the session is ended here, and forgotten by the browser."""
    sessions: Sessions = request.app.state.sessions
    token: str | None = getattr(request.state, "session", None)
    if token is not None:
        sessions.end(token, principal, request.state.request_id)
    answer = gone_to(addresses.SIGN_IN)
    hold(answer, request, SESSION, "")
    return answer
