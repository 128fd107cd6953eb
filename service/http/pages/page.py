"""The response of a page: its route class, its template with the frame of all pages, and its errors as pages.

Every page is sent with headers that forbid caching, framing and loading anything from another origin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.exceptions import HTTPException

from registry.errors import Internal, SoupError
from registry.names import KeyScope
from service.access.keys import Principal
from service.http import problems
from service.http.pages import forms
from service.http.pages.cookies import FORM, form_token, set_cookie
from service.http.pages.templates import render_template
from service.http.requests.bodies import CheckedRoute, Handler
from service.http.security.auth import MANUAL, allowed, scopes_of
from service.settings import Settings

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "cache-control": "no-store",
    "referrer-policy": "same-origin",  # without a referrer browsers send forms with the origin "null"
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True)
class NavigationLink:
    """A link in the navigation, shown to keys with one of `scopes` and, if `global_only`, access to all namespaces."""

    path: str
    name: str
    scopes: tuple[KeyScope, ...]
    global_only: bool = False

    def is_visible_to(self, principal: Principal) -> bool:
        """Return True if a key may see the page."""
        return any(map(principal.has, self.scopes)) and not (self.global_only and principal.namespaces is not None)


@dataclass(frozen=True)
class NavigationSection:
    """Pages under one entry of the menu; `prefixes` begin paths of its pages that are in no menu."""

    name: str
    links: tuple[NavigationLink, ...]
    prefixes: tuple[str, ...] = ()

    def visible_to(self, principal: Principal) -> NavigationSection:
        """The section with the pages that a key may see."""
        return replace(self, links=tuple(link for link in self.links if link.is_visible_to(principal)))

    def contains(self, path: str) -> bool:
        """Return True if a page belongs to the section."""
        return path.startswith((*(link.path for link in self.links), *self.prefixes))


NAVIGATION = (
    NavigationSection(
        "Models",
        (
            NavigationLink("/models", "Models", ("read",)),
            NavigationLink("/push", "Push", ("write",)),
            NavigationLink("/compare", "Compare", ("read",)),
            NavigationLink("/map", "Map", ("read",)),
            NavigationLink("/matrix", "Matrix", ("read",)),
        ),
        prefixes=("/soups/",),
    ),
    NavigationSection("Cook", (NavigationLink("/cook", "Cook", ("write",)),)),
    NavigationSection("Playground", (NavigationLink("/playground", "Playground", ("infer",)),)),
    NavigationSection(
        "Jobs",
        (NavigationLink("/jobs", "Jobs", ("read",)), NavigationLink("/trainings", "Trainings", ("read",))),
    ),
    NavigationSection(
        "Admin",
        (
            NavigationLink("/usage", "Usage", get_args(KeyScope)),
            NavigationLink("/keys", "Keys", ("admin",)),
            NavigationLink("/audit", "Audit", ("admin",)),
            NavigationLink("/engine", "Engine", ("admin",), global_only=True),
            NavigationLink("/selectors", "Selectors", ("read",)),
        ),
    ),
)


def has_json_errors(path: str) -> bool:
    """Return True if a path is read by programs or by a page's script, which get errors as JSON and not as a page."""
    return path.endswith((".json", ".csv", ".svg", "/events")) or path.startswith("/push/")


class PageRoute(CheckedRoute):
    """A route for browsers: checks a form before its endpoint runs, and answers errors with a page.

    Paths that are read by programs (`.json`, events) answer errors as the API does.
    """

    def get_route_handler(self) -> Handler:
        """The handler, with the checks that the endpoint declares (`takes_form`, `takes_token`) before it."""
        handle, limit = super().get_route_handler(), forms.form_limit(self.endpoint)
        scopes, requires_token = scopes_of(self.dependant), forms.requires_token(self.endpoint)

        async def handler(request: Request) -> Response:
            try:
                if limit is not None:
                    key_id = allowed(request, scopes).key_id if scopes else ""
                    await forms.read_form(request, key_id, limit)
                if requires_token:
                    allowed(request, scopes)
                    forms.check_csrf_header(request)
                response = await handle(request)
            except Exception as error:
                if has_json_errors(request.url.path):
                    raise
                return error_page(request, error)
            response.headers.setdefault("cache-control", "no-store")
            return response

        return handler


def render_page(
    request: Request, template: str, *, error: SoupError | None = None, status: int = 200, **values: Any
) -> Response:
    """A page: a template with `values` and the values that the frame of all pages needs.

    An `error` is passed to the template as `problem`, and sets the status and headers of the response.
    """
    headers = dict(HEADERS)
    if error is not None:
        values["problem"] = problems.body_of(error).error
        request.state.error_code = values["problem"].code
        status, headers = problems.status_of(error), headers | problems.headers_for(request, error)
    settings = request.app.state.runtime.settings
    principal: Principal | None = getattr(request.state, "principal", None)
    sections = [] if principal is None else [section.visible_to(principal) for section in NAVIGATION]
    frame = {
        "principal": principal,
        "signed_in": principal is not None and not settings.no_auth,
        "token": form_token(request),
        "path": request.url.path,
        "navigation": [section for section in sections if section.links],
        "request_id": request.state.request_id,
        "help_links": _help_links(settings),
    }
    html = render_template(template, **{"problem": None, **frame, **values})
    response = HTMLResponse(html, status_code=status, headers=headers)
    if request.state.form_secret_is_new:
        set_cookie(response, request, FORM, request.state.form_secret)
    return response


def _help_links(settings: Settings) -> dict[str, str]:
    """The addresses of the documentation by name, as far as the server serves it to browsers."""
    if not settings.docs_public:
        return {}
    manual = {"Documentation": f"{MANUAL}/docs/index.html"} if settings.manual else {}
    return {**manual, "API reference": "/docs"}


def redirect_to(path: str) -> RedirectResponse:
    """The response to a form that was accepted: a redirect to the next page."""
    return RedirectResponse(path, status_code=303, headers={"cache-control": "no-store"})


def error_page(request: Request, error: Exception) -> Response:
    """A page with the message of an error; an unexpected error shows nothing of itself."""
    if isinstance(error, RequestValidationError):
        error = problems.from_validation(error.errors())
    elif isinstance(error, HTTPException):
        raise error
    if isinstance(error, SoupError):
        return render_page(request, "error.html", error=error)
    body = problems.unexpected(error)
    request.state.error_code = body.error.code
    return render_page(request, "error.html", status=problems.STATUS[Internal], problem=body.error)
