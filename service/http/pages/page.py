"""The class of every page: its errors are pages too, and the form that it takes is read and checked before it runs.

`shown` is how a page answers: a template, and headers under which nothing is kept, framed or fetched from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from registry.errors import SoupError
from registry.names import KeyScope
from service.http import problems
from service.http.auth import allowed, scopes_of
from service.http.bodies import CheckedRoute, Handler
from service.http.pages import addresses, forms
from service.http.pages.cookies import FORM, form_token, hold
from service.http.pages.templates import drawn
from service.keys import NOBODY_IN_PARTICULAR, Principal

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "cache-control": "no-store",
    "referrer-policy": "same-origin",  # with none at all a browser does not say where a form comes from
    "cross-origin-opener-policy": "same-origin",
}
NAVIGATION: tuple[tuple[str, str, tuple[KeyScope, ...]], ...] = (
    (addresses.MODELS, "Models", ("read",)), (addresses.COOK, "Cook", ("write",)), (addresses.JOBS, "Jobs", ("read",)),
    (addresses.PLAYGROUND, "Playground", ("infer",)), (addresses.COMPARE, "Compare", ("read",)),
    (addresses.MAP, "Map", ("read",)),
    (addresses.USAGE, "Usage", get_args(KeyScope)), (addresses.KEYS, "Keys", ("admin",)),
    (addresses.AUDIT, "Audit", ("admin",)), (addresses.ENGINE, "Engine", ("admin",)),
)  # fmt: skip
"""Place and name of each page that is there, and the scopes of which it needs one."""
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class PageRoute(CheckedRoute):
    """A route that answers a browser. What is for programs (`.json`, events) gets its errors as the API does."""

    def get_route_handler(self) -> Handler:
        """The handler, behind the form's checks where it takes one."""
        answer, limit = super().get_route_handler(), forms.limit_of(self.endpoint)
        scopes = scopes_of(self.dependant)

        async def handler(request: Request) -> Response:
            try:
                if limit is not None:
                    who = allowed(request, scopes) if scopes else None
                    await forms.read(request, "" if who is None else who.key_id, limit)
                found = await answer(request)
            except Exception as error:
                if request.url.path.endswith((addresses.TWIN, addresses.CSV, "/events")):
                    raise
                return failed(request, error)
            found.headers.setdefault("cache-control", "no-store")
            return found

        return handler


def shown(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page: a template with these values, and what all of them need."""
    who: Principal | None = getattr(request.state, "principal", None)
    frame = {
        "who": who,
        "signed_in": who is not None and who is not NOBODY_IN_PARTICULAR,
        "token": form_token(request),
        "path": request.url.path,
        "navigation": [
            (place, name) for place, name, scopes in NAVIGATION if who is not None and any(map(who.has, scopes))
        ],
        "request_id": request.state.request_id,
    }
    answer = HTMLResponse(drawn(template, **frame, **values), status_code=status, headers=HEADERS)
    if request.state.form_secret_is_new:
        hold(answer, request, FORM, request.state.form_secret)
    return answer


def gone_to(path: str) -> RedirectResponse:
    """What a form that was taken answers with: the page to look at next."""
    return RedirectResponse(path, status_code=303, headers={"cache-control": "no-store"})


def failed(request: Request, error: Exception) -> Response:
    """An error as a page; nothing is shown of one that nobody foresaw."""
    if isinstance(error, RequestValidationError):
        error = problems.from_validation(error.errors())
    elif isinstance(error, HTTPException):
        raise error
    if isinstance(error, SoupError):
        found, body = problems.response_of(error), problems.body_of(error)
    else:
        body = problems.unexpected(error)
        found = problems.response_of_unexpected(body)
    request.state.error_code = body.error.code
    answer = shown(request, "error.html", status=found.status_code, problem=body.error)
    if "retry-after" in found.headers:
        answer.headers["retry-after"] = found.headers["retry-after"]
    return answer
