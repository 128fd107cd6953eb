"""Authentication: the layer that authenticates every request (Gate), and the scopes that a route needs, as types.

Gate denies by default: everything but reading a path of PUBLIC needs a key that exists, before a byte of the body is
read and whatever the route declares. Pages that a BrowserAuth calls public need none: the form to sign in, and static
files. A route declares `principal: Reader`, `Writer`, `ModelUser` or `Admin` in its signature, or
`Annotated[Principal, Depends(needs("read", "write"))]`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Annotated, Protocol
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.dependencies.models import Dependant
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.catalogue import Database
from registry.errors import Forbidden, SoupError, Unauthenticated
from registry.names import KeyScope
from service.access.key_watch import KeyWatch
from service.access.keys import NO_AUTH_PRINCIPAL, Principal, Tokens, authenticate
from service.http import problems
from service.http.security.answer_limits import AnswerLimits, most_connections
from service.http.security.throttle import KeyThrottle
from service.http.thread_turns import current_key_id
from service.settings import Settings

PUBLIC = frozenset({"/healthz", "/readyz"})
MANUAL = "/docs/manual"
"""The path of the documentation. No adapter's file lies below it, as one could below `/manual`: `docs` is a reserved
namespace."""
PUBLIC_DOCS = frozenset({"/docs", "/manual", MANUAL, "/openapi.json", "/static"})
STATIC = ("/static/", f"{MANUAL}/")
BODILESS = frozenset({"GET", "HEAD"})
"""Methods whose body no route reads: without a key no body is read into memory."""
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")


# --- the layer before the routes ------------------------------------------------------------------


class BrowserAuth(Protocol):
    """Authentication of browsers, on a server that has pages: `service.http.pages.browser_auth`."""

    def handles(self, scope: Scope) -> bool:
        """Return True for a request without a key that is for a page."""

    def is_public(self, scope: Scope) -> bool:
        """Return True if a request needs no session."""

    def cookie_headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Request headers with the cookies of the pages only."""

    def principal(self, scope: Scope) -> Principal:
        """The principal of the session; raises Unauthenticated."""

    def rejection(self, scope: Scope, error: SoupError) -> ASGIApp:
        """The response to a request that was refused."""


class Gate:
    """ASGI layer that puts the Principal of a request into its state, or answers with 401, 403 or 429."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        database: Database,
        settings: Settings,
        watch: KeyWatch,
        tokens: Tokens | None = None,
        browser_auth: BrowserAuth | None = None,
    ) -> None:
        self._app = app
        self._browser_auth = browser_auth
        self._settings = settings
        self._authenticate = partial(authenticate, database, watch=watch, tokens=tokens)
        self._throttle = KeyThrottle(problems.TOO_MUCH)
        self._answers = AnswerLimits(most_connections(settings))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request that is allowed. Websockets are refused: no route has one."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if came_by_tls(scope):
            scope["scheme"] = "https"  # in the addresses of redirects and next pages
        self._drop_cookies(scope)
        try:
            principal = await self._principal(scope)
            if principal is not None:
                await self._throttle.turn(principal.key_id)
                send = self._recording(send, principal.key_id)
            answer = self._count_answer(scope, principal)
        except SoupError as error:
            browser_auth = self._browser_auth_of(scope)
            refusal = problems.response_of(error) if browser_auth is None else browser_auth.rejection(scope, error)
            await refusal(scope, receive, send)
            return
        scope.setdefault("state", {}).update(principal=principal, authenticate_again=self._principal)
        with answer:
            await self._app(scope, receive, send)

    def _drop_cookies(self, scope: Scope) -> None:
        """Drop foreign cookies: the framework unquotes every cookie in time quadratic in its length."""
        if any(name == b"cookie" for name, _ in scope["headers"]):
            cookies = [] if self._browser_auth is None else self._browser_auth.cookie_headers(scope)
            scope["headers"] = [header for header in scope["headers"] if header[0] != b"cookie"] + cookies

    def _count_answer(self, scope: Scope, principal: Principal | None) -> AbstractContextManager[None]:
        """Count the answer while the context lasts; raises Busy. A server without keys and public paths have no limit.

        All forms to sign in count as of one key, whose id is empty.
        """
        if self._settings.no_auth or (principal is None and scope["method"] in BODILESS):
            return nullcontext()
        if principal is None:
            return self._answers.acquire("")
        current_key_id.set(principal.key_id)
        return self._answers.acquire(principal.key_id)

    def _recording(self, send: Send, key_id: str) -> Send:
        """Return `send` with the statuses of a key's answers recorded."""

        async def record_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._throttle.record(key_id, int(message["status"]))
            await send(message)

        return record_and_send

    async def _principal(self, scope: Scope) -> Principal | None:
        """The principal of a request; None if it needs no key. Raises Unauthenticated or Forbidden."""
        principal = await self._authenticated(scope)
        return None if principal is None else replace(principal, request_id=scope["state"]["request_id"])

    async def _authenticated(self, scope: Scope) -> Principal | None:
        headers = Headers(scope=scope)
        if self._settings.no_auth:
            check_local(headers, allowed=self._settings.allowed_hosts)
            return NO_AUTH_PRINCIPAL
        if scope["method"] in BODILESS and self._public(scope["path"]):
            return None
        browser_auth = self._browser_auth_of(scope)
        if browser_auth is not None:
            return None if browser_auth.is_public(scope) else await run_in_threadpool(browser_auth.principal, scope)
        return await run_in_threadpool(self._authenticate, headers.get("authorization"))

    def _browser_auth_of(self, scope: Scope) -> BrowserAuth | None:
        """The authentication of a browser's request; None for a request with a key."""
        return self._browser_auth if self._browser_auth is not None and self._browser_auth.handles(scope) else None

    def _public(self, path: str) -> bool:
        if path in PUBLIC or (path == "/metrics" and self._settings.metrics_public):
            return True
        return self._settings.docs_public and (path in PUBLIC_DOCS or path.startswith(STATIC))


def check_local(headers: Headers, *, allowed: Sequence[str]) -> None:
    """Raise Forbidden unless a request comes from this machine: the checks of `no_auth`, where there are no keys.

    Without them any page open in a browser on this machine could call the server: by a name that resolves here (Host),
    or by a request across origins (Origin). A proxy could also make remote clients look local.
    """
    host = headers.get("host", "")
    if _hostname(f"//{host}") not in allowed:
        raise Forbidden("This server runs without keys and answers to local host names only (SOUP_ALLOWED_HOSTS).")
    present = [name for name in FORWARDED if name in headers]
    if present:
        raise Forbidden(f"This server runs without keys and refuses requests through a proxy ('{present[0]}').")
    origin = headers.get("origin")
    if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
        raise Forbidden("This server runs without keys and refuses requests from pages of another origin.")


def came_by_tls(scope: Scope) -> bool:
    """Return True if the client is known to use TLS; of several proxies the first is the one it connected to.

    `X-Forwarded-Proto` is the one header of a proxy that is believed. A client that lies only makes its own cookies
    stricter and its own redirects wrong.
    """
    forwarded_proto = Headers(scope=scope).get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return scope.get("scheme") == "https" or forwarded_proto == "https"


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


# --- types in a route's signature -----------------------------------------------------------------

_bearer = HTTPBearer(auto_error=False, scheme_name="Key", description="A key of this server: sk-soup-...")


def needs(*scopes: KeyScope) -> Callable[..., Awaitable[Principal]]:
    """Return a dependency that provides the Principal; it raises Forbidden unless that has one of `scopes`."""
    assert scopes, "a route that needs nothing is public: list it in PUBLIC"

    async def principal(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None
    ) -> Principal:
        return allowed(request, scopes)

    principal.scopes = scopes  # type: ignore[attr-defined]  # for `scopes_of`
    return principal


def allowed(request: Request, scopes: Sequence[KeyScope]) -> Principal:
    """Return the request's principal; raises Unauthenticated if there is none, Forbidden if it has none of `scopes`."""
    principal = getattr(request.state, "principal", None)
    if not isinstance(principal, Principal):  # the gate did not run: deny
        raise Unauthenticated("This needs a key: send 'Authorization: Bearer sk-soup-...'.")
    if not any(principal.has(scope) for scope in scopes):
        raise Forbidden(f"This key lacks the scope {' or '.join(repr(scope) for scope in scopes)}.")
    return principal


async def reauthenticated(request: Request, *scopes: KeyScope) -> Principal | None:
    """Authenticate the request again during a long answer; None if its key or session has ended or lacks `scopes`."""
    try:
        request.state.principal = await request.state.authenticate_again(request.scope)
        return allowed(request, scopes)
    except (Unauthenticated, Forbidden):
        return None


def scopes_of(dependant: Dependant) -> tuple[KeyScope, ...]:
    """Return the scopes of a route's `needs`, any one of which suffices; empty if the route has none."""
    for dependency in dependant.dependencies:
        scopes: tuple[KeyScope, ...] = getattr(dependency.call, "scopes", ())
        if scopes:
            return scopes
    return ()


Reader = Annotated[Principal, Depends(needs("read"))]
Writer = Annotated[Principal, Depends(needs("write"))]
ModelUser = Annotated[Principal, Depends(needs("infer"))]
Admin = Annotated[Principal, Depends(needs("admin"))]
