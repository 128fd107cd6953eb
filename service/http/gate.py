"""The ASGI layers before the routes: Gate authenticates the request's key, Bodies limits and checks its body.

Gate denies by default: all but reading a path of PUBLIC needs a key that exists, before a byte of its body is read,
and whatever the route declares. Bodies reads every body but a blob's up to a limit, and refuses JSON that two parsers
could read differently (duplicate keys, NaN, lone surrogates).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.errors import Forbidden, InvalidParameter, SoupError, TooLarge
from registry.files import loads_strict
from service.http import problems
from service.keys import NOBODY_IN_PARTICULAR, Principal, authenticate
from service.settings import Settings

if TYPE_CHECKING:
    from registry.catalogue import Database

PUBLIC = frozenset({"/healthz", "/readyz"})
PUBLIC_DOCS = frozenset({"/docs", "/docs/openapi.json", "/openapi.json", "/static"})
STATIC = "/static/"
BLOBS = "/v1/blobs/"
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
LARGE_JSON = 64 * 1024
"""Bodies beyond this are checked in a thread, so that the event loop stays free."""
MAX_KEYS = 1000
"""Keys of one object: more than any body has, and few enough that naming every unknown one stays cheap."""
BODILESS = frozenset({"GET", "HEAD"})
"""Methods whose body no route reads, so that nobody without a key can have one gathered."""


# --- who is asking --------------------------------------------------------------------------------


class Gate:
    """ASGI layer: puts the Principal of the request into its state, or answers 401 / 403."""

    def __init__(self, app: ASGIApp, *, database: Database, settings: Settings) -> None:
        self._app = app
        self._database = database
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if it may go on; there are no websockets, so that one is refused."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        if scope["type"] == "http":
            try:
                principal = await self._principal(scope)
            except SoupError as error:
                await problems.response_of(error)(scope, receive, send)
                return
            scope.setdefault("state", {})["principal"] = principal
        await self._app(scope, receive, send)

    async def _principal(self, scope: Scope) -> Principal | None:
        headers = Headers(scope=scope)
        if self._settings.no_auth:
            check_local(headers, allowed=self._settings.allowed_hosts)
            return NOBODY_IN_PARTICULAR
        if scope["method"] in BODILESS and self._public(scope["path"]):
            return None
        return await run_in_threadpool(authenticate, self._database, headers.get("authorization"))

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


# --- bodies ---------------------------------------------------------------------------------------


class Bodies:
    """ASGI layer: reads a body up to `limit` bytes, checks JSON, and hands it on in one piece.

    Blobs pass untouched: their route writes them to disk as they come; so do GET and HEAD, whose bodies no route
    reads. What is received after the body (a disconnect) goes through.
    """

    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its body checked, or answer 400 / 413."""
        if scope["type"] != "http" or scope["method"] in BODILESS or _is_upload(scope):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            body = await self._read(headers, receive)
            if body is None:
                return  # the client is gone
            if body and is_json(headers.get("content-type", "")):
                await (run_in_threadpool(check_json, body) if len(body) > LARGE_JSON else _at_once(body))
        except SoupError as error:
            await problems.response_of(error)(scope, receive, send)
            return
        await self._app(scope, _Replay(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._limit:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._limit:
                raise self._too_large()
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The body is larger than {self._limit} bytes (SOUP_MAX_JSON_BYTES); upload files as blobs.")


def _is_upload(scope: Scope) -> bool:
    return bool(scope["method"] == "PUT" and scope["path"].startswith(BLOBS))


async def _at_once(body: bytes) -> None:
    check_json(body)


class _Replay:
    """`receive` that gives the body in one message, then whatever really comes."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


def is_json(content_type: str) -> bool:
    """Whether a content type is JSON, as the framework sees it."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def check_json(body: bytes) -> None:
    """Raises InvalidParameter unless `body` is JSON that every parser reads the same way."""
    loads_strict(body, what="The body", error=InvalidParameter, max_keys=MAX_KEYS)
