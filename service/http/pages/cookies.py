"""The two cookies of the pages, and the CSRF token that every form has.

`soup-session` holds a session (`service.access.sessions`). `soup-form` holds random bits for forms without a session:
the sign-in form, and all forms of a server without keys. Scripts cannot read the cookies and other sites do not send
them. The token of a form is a hash of its cookie, which other sites cannot know.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from registry.errors import Forbidden
from service.http.security.auth import came_by_tls
from service.settings import Settings

SESSION = "soup-session"
FORM = "soup-form"
HOST_ONLY = "__Host-"
"""Prefix of a cookie that is sent over TLS: no other host can have set it."""
VALUE = re.compile(r"[A-Za-z0-9_-]{43}")
"""The value of either cookie: 256 random bits, as `secrets.token_urlsafe` writes them."""
NAMES = frozenset({SESSION, FORM, HOST_ONLY + SESSION, HOST_ONLY + FORM})
STALE_FORM = "This form is not of this session any more: load the page again and send it once more."


def is_secure(scope: Scope, settings: Settings) -> bool:
    """Return True if cookies are sent over TLS only: the browser uses TLS, or the settings require it."""
    return settings.pages_secure or came_by_tls(scope)


def cookie_name(name: str, *, secure: bool) -> str:
    """The name of a cookie with its prefix."""
    return HOST_ONLY + name if secure else name


def page_cookies(scope: Scope) -> Iterator[tuple[str, str]]:
    """Name and value of every cookie of a request that has a name and a value as the pages set them.

    Cookies of other services on this host are skipped without unquoting them.
    """
    for header in Headers(scope=scope).getlist("cookie"):
        for cookie in header.split(";"):
            name, _, value = (text.strip() for text in cookie.partition("="))
            if name in NAMES and VALUE.fullmatch(value):
                yield name, value


def read_cookie(scope: Scope, name: str, settings: Settings) -> str | None:
    """The value of a cookie of the pages, None if the browser has not sent it."""
    full_name = cookie_name(name, secure=is_secure(scope, settings))
    return next((value for name, value in page_cookies(scope) if name == full_name), None)


def set_cookie(response: Response, request: Request, name: str, value: str) -> None:
    """Set a cookie until the browser is closed; an empty value deletes it."""
    secure = is_secure(request.scope, request.app.state.runtime.settings)
    response.set_cookie(
        cookie_name(name, secure=secure),
        value,
        max_age=None if value else 0,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )


# --- forms ----------------------------------------------------------------------------------------


def form_secret(request: Request) -> str:
    """The secret of this request's forms: the session, else the form cookie, which is generated if there is none."""
    state = request.state
    if not hasattr(state, "form_secret"):
        session: str | None = getattr(state, "session", None)
        existing = session or read_cookie(request.scope, FORM, request.app.state.runtime.settings)
        state.form_secret = existing or secrets.token_urlsafe(32)
        state.form_secret_is_new = existing is None
    return str(state.form_secret)


def form_token(request: Request) -> str:
    """The CSRF token of the forms on this page."""
    return hashlib.sha256(f"form:{form_secret(request)}".encode()).hexdigest()


def check_site(request: Request) -> None:
    """Raise Forbidden if the browser says that a page of another site sent the form."""
    headers = request.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in {None, "same-origin"} or (origin is not None and not _has_host(origin, headers.get("host", ""))):
        raise Forbidden("This form was sent by a page of another site.")


def check_token(request: Request, token: str) -> None:
    """Raise Forbidden unless the form has the token of this browser's forms."""
    expected = form_token(request)
    if request.state.form_secret_is_new or not hmac.compare_digest(expected.encode(), token.encode()):
        raise Forbidden(STALE_FORM)


def _has_host(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False
