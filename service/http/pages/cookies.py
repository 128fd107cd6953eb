"""The two cookies of the pages, and the token of every form that is made of one of them.

One holds a session (`service.access.sessions`), the other some random bits for the forms of whoever has no session:
the form to sign in, and all of them on a server without keys. Neither can be read by scripts or comes from another
site. A form's token is a hash of the cookie that it goes with, which no other site can know.
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
from service.http.security.forwarded import came_by_tls
from service.settings import Settings

SESSION = "soup-session"
FORM = "soup-form"
HOST_ONLY = "__Host-"
"""Before the name of a cookie that came by TLS: no other host can have set it."""
VALUE = re.compile(r"[A-Za-z0-9_-]{43}")
"""What either holds: 256 random bits, as `secrets.token_urlsafe` writes them."""
OURS = frozenset({SESSION, FORM, HOST_ONLY + SESSION, HOST_ONLY + FORM})
STALE = "This form is not of this session any more: load the page again and send it once more."


def is_secure(scope: Scope, settings: Settings) -> bool:
    """Whether cookies go by TLS alone: the browser came so, or the settings say so."""
    return settings.pages_secure or came_by_tls(scope)


def cookie_name(name: str, *, secure: bool) -> str:
    """What a cookie is called."""
    return HOST_ONLY + name if secure else name


def own_cookies(scope: Scope) -> Iterator[tuple[str, str]]:
    """Name and value of every cookie of a request that is called as ours are and holds what we give out.

    Cookies of others on this host are passed over, whatever they hold: nothing is unquoted.
    """
    for header in Headers(scope=scope).getlist("cookie"):
        for one in header.split(";"):
            name, _, value = (part.strip() for part in one.partition("="))
            if name in OURS and VALUE.fullmatch(value):
                yield name, value


def held(scope: Scope, name: str, settings: Settings) -> str | None:
    """What the browser holds in a cookie of ours."""
    wanted = cookie_name(name, secure=is_secure(scope, settings))
    return next((value for called, value in own_cookies(scope) if called == wanted), None)


def hold(response: Response, request: Request, name: str, value: str) -> None:
    """Have the browser hold a value until it is closed; an empty one is given up at once."""
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
    """What this request's forms are bound to: its session, else its other cookie, which is made where there is none."""
    state = request.state
    if not hasattr(state, "form_secret"):
        session: str | None = getattr(state, "session", None)
        known = session or held(request.scope, FORM, request.app.state.runtime.settings)
        state.form_secret = known or secrets.token_urlsafe(32)
        state.form_secret_is_new = known is None
    found: str = state.form_secret
    return found


def form_token(request: Request) -> str:
    """The token that a form of this page carries."""
    return hashlib.sha256(f"form:{form_secret(request)}".encode()).hexdigest()


def check_site(request: Request) -> None:
    """Raises Forbidden where the browser says that a form is of another site's page."""
    headers = request.headers
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in {None, "same-origin"} or (origin is not None and not _is_ours(origin, headers.get("host", ""))):
        raise Forbidden("This form was sent by a page of another site.")


def check_token(request: Request, token: str) -> None:
    """Raises Forbidden unless a form that was sent is of a page of ours, shown to this browser."""
    expected = form_token(request)
    if request.state.form_secret_is_new or not hmac.compare_digest(expected.encode(), token.encode()):
        raise Forbidden(STALE)


def _is_ours(origin: str, host: str) -> bool:
    try:
        return urlsplit(origin).netloc == host
    except ValueError:
        return False
