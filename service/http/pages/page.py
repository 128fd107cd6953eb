"""The class of every page: its errors are pages too, and the form that it takes is read and checked before it runs.

`shown` is how a page answers: a template, and headers under which nothing is kept, framed or fetched from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from registry.errors import SoupError
from registry.names import KeyScope
from service.access.keys import NOBODY_IN_PARTICULAR, Principal
from service.http import problems
from service.http.pages import addresses, forms
from service.http.pages.cookies import FORM, form_token, hold
from service.http.pages.templates import drawn
from service.http.requests.bodies import CheckedRoute, Handler
from service.http.security.auth import allowed, scopes_of

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


@dataclass(frozen=True)
class Entry:
    """A page in the navigation, and the scopes of which a key needs one; `whole` if also all namespaces."""

    place: str
    name: str
    scopes: tuple[KeyScope, ...]
    whole: bool = False

    def is_for(self, principal: Principal) -> bool:
        """Whether a key sees it."""
        return any(map(principal.has, self.scopes)) and not (self.whole and principal.namespaces is not None)


NAVIGATION = (
    Entry(addresses.MODELS, "Models", ("read",)),
    Entry(addresses.PUSH, "Push", ("write",)),
    Entry(addresses.COOK, "Cook", ("write",)),
    Entry(addresses.JOBS, "Jobs", ("read",)),
    Entry(addresses.TRAININGS, "Trainings", ("read",)),
    Entry(addresses.SELECTORS, "Selectors", ("read",)),
    Entry(addresses.PLAYGROUND, "Playground", ("infer",)),
    Entry(addresses.COMPARE, "Compare", ("read",)),
    Entry(addresses.MAP, "Map", ("read",)),
    Entry(addresses.MATRIX, "Matrix", ("read",)),
    Entry(addresses.USAGE, "Usage", get_args(KeyScope)),
    Entry(addresses.KEYS, "Keys", ("admin",)),
    Entry(addresses.AUDIT, "Audit", ("admin",)),
    Entry(addresses.ENGINE, "Engine", ("admin",), whole=True),
)
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class PageRoute(CheckedRoute):
    """A route that answers a browser. What is for programs (`.json`, events) gets its errors as the API does."""

    def get_route_handler(self) -> Handler:
        """The handler, behind the form's checks where it takes one."""
        answer, limit = super().get_route_handler(), forms.limit_of(self.endpoint)
        scopes, tokened = scopes_of(self.dependant), forms.wants_token(self.endpoint)

        async def handler(request: Request) -> Response:
            try:
                if limit is not None:
                    principal = allowed(request, scopes) if scopes else None
                    await forms.read(request, "" if principal is None else principal.key_id, limit)
                if tokened:
                    allowed(request, scopes)
                    forms.check_header(request)
                found = await answer(request)
            except Exception as error:
                if addresses.is_for_programs(request.url.path):
                    raise
                return failed(request, error)
            found.headers.setdefault("cache-control", "no-store")
            return found

        return handler


def shown(
    request: Request, template: str, *, error: SoupError | None = None, status: int = 200, **values: Any
) -> Response:
    """A page: a template with these values, and what all of them need.

    With an error it says that too, as `problem`, and has its status and headers.
    """
    headers = dict(HEADERS)
    if error is not None:
        values["problem"] = problems.body_of(error).error
        request.state.error_code = values["problem"].code
        status, headers = problems.status_of(error), headers | problems.noticed(request, error)
    principal: Principal | None = getattr(request.state, "principal", None)
    frame = {
        "principal": principal,
        "signed_in": principal is not None and principal is not NOBODY_IN_PARTICULAR,
        "token": form_token(request),
        "path": request.url.path,
        "navigation": [(one.place, one.name) for one in NAVIGATION if principal is not None and one.is_for(principal)],
        "request_id": request.state.request_id,
    }
    values.setdefault("problem", None)
    answer = HTMLResponse(drawn(template, **frame, **values), status_code=status, headers=headers)
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
        return shown(request, "error.html", error=error)
    body = problems.unexpected(error)
    request.state.error_code = body.error.code
    status = problems.response_of_unexpected(body).status_code
    return shown(request, "error.html", status=status, problem=body.error)
