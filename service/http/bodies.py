"""The ASGI layer that reads and checks bodies before the routes: up to a limit, and JSON of one meaning only.

JSON that two parsers could read differently (duplicate keys, NaN, lone surrogates) is refused. Blobs pass untouched.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.errors import InvalidParameter, SoupError, TooLarge
from registry.files import loads_strict
from service.http import problems
from service.http.auth import BODILESS

BLOBS = "/v1/blobs/"
LARGE_JSON = 64 * 1024
"""Bodies beyond this are checked in a thread, so that the event loop stays free."""
MAX_KEYS = 1000
"""Keys of one object: more than any body has, and few enough that naming every unknown one stays cheap."""


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
                if len(body) > LARGE_JSON:
                    await run_in_threadpool(check_json, body)
                else:
                    check_json(body)
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
