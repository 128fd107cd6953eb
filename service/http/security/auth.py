"""Who may pass: the layer that authenticates every request (Gate), and what a route needs of a key, as a type.

Gate denies by default: all but reading a path of PUBLIC needs a key that exists, before a byte of its body is read,
and whatever the route declares. Of pages, those that a Door calls open need none: the form to sign in, and files. A
route says `who: Reader`, `Writer`, `ModelUser` or `Admin` in its signature, or `Annotated[Principal,
Depends(needs("read", "write"))]`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
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
from service.access.keys import NOBODY_IN_PARTICULAR, Principal, Tokens, authenticate
from service.http import problems
from service.http.security.places import Places, most_connections
from service.http.security.refusals import Refusals
from service.http.thread_turns import asking
from service.settings import Settings

PUBLIC = frozenset({"/healthz", "/readyz"})
PUBLIC_DOCS = frozenset({"/docs", "/openapi.json", "/static"})
STATIC = "/static/"
BODILESS = frozenset({"GET", "HEAD"})
"""Methods whose body no route reads, so that nobody without a key can have one gathered."""
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")


# --- the layer before the routes ------------------------------------------------------------------


class Door(Protocol):
    """How browsers pass, on a server that has pages: `service.http.pages.door`."""

    def takes(self, scope: Scope) -> bool:
        """Whether a request is for a page, and comes without a key of its own."""

    def is_open(self, scope: Scope) -> bool:
        """Whether it is for whoever has not signed in as well."""

    def cookies(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """The headers with which the browser sends the cookies that it has from here."""

    def principal(self, scope: Scope) -> Principal:
        """Who signed in; raises Unauthenticated."""

    def refused(self, scope: Scope, error: SoupError) -> ASGIApp:
        """What whoever may not go on is told."""


class Gate:
    """ASGI layer: puts the Principal of the request into its state, or answers 401 / 403."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        database: Database,
        settings: Settings,
        watch: KeyWatch,
        tokens: Tokens | None = None,
        door: Door | None = None,
    ) -> None:
        self._app = app
        self._door = door
        self._settings = settings
        self._authenticate = partial(authenticate, database, watch=watch, tokens=tokens)
        self._refusals = Refusals(problems.TOO_MUCH)
        self._places = Places(most_connections(settings))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if it may go on; there are no websockets, so that one is refused."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._drop_cookies(scope)
        try:
            principal = await self._principal(scope)
            if principal is not None:
                await self._refusals.turn(principal.key_id)
                send = self._watched(send, principal.key_id)
            place = self._place(scope, principal)
        except SoupError as error:
            door = self._door_of(scope)
            refusal = problems.response_of(error) if door is None else door.refused(scope, error)
            await refusal(scope, receive, send)
            return
        scope.setdefault("state", {}).update(principal=principal, ask_again=self._principal)
        with place:
            await self._app(scope, receive, send)

    def _drop_cookies(self, scope: Scope) -> None:
        """Keep no cookies but the pages' own: the framework unquotes all that come, in the square of their length."""
        if any(name == b"cookie" for name, _ in scope["headers"]):
            ours = [] if self._door is None else self._door.cookies(scope)
            scope["headers"] = [one for one in scope["headers"] if one[0] != b"cookie"] + ours

    def _place(self, scope: Scope, principal: Principal | None) -> AbstractContextManager[None]:
        """A place for the answer, to be given back; raises Busy. Who is alone has all, and so has what is public.

        Whoever sends a form to sign in shares the places of one key, of no id, with all others who do.
        """
        if principal is NOBODY_IN_PARTICULAR or (principal is None and scope["method"] in BODILESS):
            return nullcontext()
        if principal is None:
            return self._places.taken("")
        asking.set(principal.key_id)
        return self._places.taken(principal.key_id)

    def _watched(self, send: Send, key_id: str) -> Send:
        """`send`, which remembers what the key was refused."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._refusals.answered(key_id, int(message["status"]))
            await send(message)

        return watched

    async def _principal(self, scope: Scope) -> Principal | None:
        headers = Headers(scope=scope)
        if self._settings.no_auth:
            check_local(headers, allowed=self._settings.allowed_hosts)
            return NOBODY_IN_PARTICULAR
        if scope["method"] in BODILESS and self._public(scope["path"]):
            return None
        door = self._door_of(scope)
        if door is not None:
            return None if door.is_open(scope) else await run_in_threadpool(door.principal, scope)
        return await run_in_threadpool(self._authenticate, headers.get("authorization"))

    def _door_of(self, scope: Scope) -> Door | None:
        """The door that a request goes by; None for one with a key."""
        return self._door if self._door is not None and self._door.takes(scope) else None

    def _public(self, path: str) -> bool:
        if path in PUBLIC or (path == "/metrics" and self._settings.metrics_public):
            return True
        return self._settings.docs_public and (path in PUBLIC_DOCS or path.startswith(STATIC))


def check_local(headers: Headers, *, allowed: Sequence[str]) -> None:
    """The checks that stand in for keys under `no_auth`; raises Forbidden.

    Without them any page open in a browser on this machine could call the server: by a name that resolves here
    (Host), by a request across origins (Origin), or through a proxy that makes the world look local.
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


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


# --- types in a route's signature -----------------------------------------------------------------

_bearer = HTTPBearer(auto_error=False, scheme_name="Key", description="A key of this server: sk-soup-...")


def needs(*scopes: KeyScope) -> Callable[..., Awaitable[Principal]]:
    """A dependency that gives the Principal and raises Forbidden unless it has one of `scopes`."""
    assert scopes, "a route that needs nothing is public: list it in PUBLIC"

    async def principal(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None
    ) -> Principal:
        return allowed(request, scopes)

    principal.scopes = scopes  # type: ignore[attr-defined]  # for `scopes_of`
    return principal


def allowed(request: Request, scopes: Sequence[KeyScope]) -> Principal:
    """Who is asking; raises Forbidden for a key without one of `scopes`, Unauthenticated where there is none."""
    found = getattr(request.state, "principal", None)
    if not isinstance(found, Principal):  # the gate did not run: deny
        raise Unauthenticated("This needs a key: send 'Authorization: Bearer sk-soup-...'.")
    if not any(found.has(scope) for scope in scopes):
        raise Forbidden(f"This key lacks the scope {' or '.join(repr(scope) for scope in scopes)}.")
    return found


async def asked_again(request: Request, *scopes: KeyScope) -> Principal | None:
    """Who is asking, looked up anew, for answers that last; None where the key or session has ended."""
    try:
        request.state.principal = await request.state.ask_again(request.scope)
        return allowed(request, scopes)
    except (Unauthenticated, Forbidden):
        return None


def scopes_of(dependant: Dependant) -> tuple[KeyScope, ...]:
    """The scopes that a route's `needs` names, one of which it takes; empty where it has none."""
    found: list[tuple[KeyScope, ...]] = [getattr(one.call, "scopes", ()) for one in dependant.dependencies]
    return next(filter(None, found), ())


Reader = Annotated[Principal, Depends(needs("read"))]
Writer = Annotated[Principal, Depends(needs("write"))]
ModelUser = Annotated[Principal, Depends(needs("infer"))]
Admin = Annotated[Principal, Depends(needs("admin"))]
