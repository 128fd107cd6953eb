"""One request on its way through a router: its body, which is read once, and what has been answered so far."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
from anyio import to_thread
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from registry.errors import Cancelled, TooSlow
from registry.files import JsonCount
from service.http.body_limits import Account, check_announced, too_large, too_many
from service.http.problems import ErrorBody
from service.settings import Settings

INFERENCE = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/perplexity"})
"""Calls that go by the adapter they are for. They change nothing, so that one that was not answered is sent again."""
LARGE_JSON = 16 * 1024
UPLOADS = ("/v1/blobs/uploads", "/push/uploads")
LOOKED_INTO = 1024 * 1024
"""Bytes of a body that is looked into: reading JSON takes several times as many, for each that comes at once."""
MODEL_CHARACTERS = 200


class Call:
    """A request as it came, and the way back to whoever sent it."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, settings: Settings, request_id: str) -> None:
        self.scope = scope
        self.send = send
        self.request_id = request_id
        self.headers = Headers(scope=scope)
        self.status: int | None = None
        """Of the answer, once it has begun."""
        self.streams = False
        """Whether that is a stream of events."""
        self.gathered: bytes | None = None
        self.was_read = False
        """Whether some of the body was read; where it is not held, no other replica can have it."""
        self.replicas: list[str] = []
        """Those that were tried."""
        self._receive = receive
        self._settings = settings
        self._account: Account | None = None
        self._whole = anyio.Event()
        if not self.has_body:
            self._whole.set()

    @property
    def is_inference(self) -> bool:
        """Whether it is sent by its adapter."""
        return self.scope["method"] == "POST" and self.scope["path"] in INFERENCE

    @property
    def uploader(self) -> str | None:
        """Whose upload in parts it belongs to, by credentials; None where it belongs to none.

        Any server goes on with one. The server that took the other parts has them at hand at the end.
        """
        if not self.scope["path"].startswith(UPLOADS):
            return None
        return self.headers.get("authorization") or self.headers.get("cookie") or ""

    @property
    def is_repeatable(self) -> bool:
        """Whether a replica may get it after another one had it: inference that is held, or a read."""
        return self.gathered is not None or (self.scope["method"] in ("GET", "HEAD") and not self.was_read)

    async def gather(self, account: Account, key: str) -> None:
        """Read the whole body; raises TooLarge, Busy, TooSlow, and Cancelled where the client is gone.

        It is held until the answer begins, or `drop` is called.
        """
        self._account = account
        most, body, count = self._settings.max_json_bytes, bytearray(), JsonCount()
        if not self.has_body:
            self.gathered = b""
            return
        check_announced(self.headers.get("content-length", ""), most, self._settings)
        async for piece in self.body():
            if len(body) + len(piece) > most:
                raise too_large(most, self._settings)
            account.take(key, len(piece))
            self._check_values(count, piece)
            body += piece
        self.gathered = bytes(body)

    def begin(self, status: int) -> None:
        """The answer begins: nobody else gets the body from now on."""
        self.status = status
        self.drop()

    def drop(self) -> None:
        """Hold the body no longer."""
        self.gathered = None
        if self._account is not None:
            self._account.close()

    async def held(self) -> AsyncIterator[bytes]:
        """The held body, for who does not keep it once it was sent."""
        if self.gathered:
            yield self.gathered

    def _check_values(self, count: JsonCount, piece: bytes) -> None:
        """Raises TooLarge for JSON of more values than any call takes: reading it would cost too much."""
        count.add(piece)
        most = self._settings.max_json_values + self._settings.max_prompts + self._settings.max_text_chars
        if count.values > most or count.containers > self._settings.max_json_values:
            raise too_many("values", most)

    async def model(self) -> str | None:
        """The model that the held body names; None where it names none that could be one. The replica says why.

        None also for a body beyond LOOKED_INTO, which goes where there is the least to do.
        """
        body = self.gathered or b""
        if len(body) > LOOKED_INTO:
            return None
        value = await to_thread.run_sync(_model_of, body) if len(body) > LARGE_JSON else _model_of(body)
        return value if isinstance(value, str) and 0 < len(value) <= MODEL_CHARACTERS else None

    async def body(self) -> AsyncIterator[bytes]:
        """The body as it comes; raises TooSlow, and Cancelled where the client is gone."""
        more = True
        while more:
            try:
                with anyio.fail_after(self._settings.body_seconds):
                    message = await self._receive()
            except TimeoutError:
                seconds = self._settings.body_seconds
                raise TooSlow(f"Nothing more of the body came for {seconds:g} seconds (SOUP_BODY_SECONDS).") from None
            if message["type"] == "http.disconnect":
                raise Cancelled("The client went away.")
            more = message.get("more_body", False)
            self.was_read = True
            if message.get("body"):
                yield message["body"]
        self._whole.set()

    async def gone(self) -> None:
        """Return when the client is gone, after its body was whole."""
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def say(self, answer: Response) -> None:
        """Give an answer of the router's own."""
        self.status = answer.status_code
        answer.headers["x-request-id"] = self.request_id
        await answer(self.scope, self._receive, self.send)

    async def fail(self, body: ErrorBody, answer: Response) -> None:
        """Say an error: as the answer, or as the last event of a stream that has begun.

        Of any other answer that has begun nothing more is sent, so that the client sees it cut off.
        """
        if self.status is None:
            await self.say(answer)
        elif self.streams:
            event = f"data: {body.model_dump_json(exclude_unset=True)}\n\n".encode()
            await self.send({"type": "http.response.body", "body": event, "more_body": False})

    @property
    def has_body(self) -> bool:
        """Whether a body is announced."""
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"


def _model_of(body: bytes) -> object:
    with suppress(ValueError, RecursionError):
        value = json.loads(body)
        if isinstance(value, dict):
            return value.get("model")
    return None
