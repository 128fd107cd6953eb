"""Requests to an ASGI application of the same process: what a client sends goes to it without a socket.

Used by `Store` under `SoupClient`. The application runs on an event loop in a thread of its own, any thread may send,
and a body is handed over piece by piece in both directions: whoever reads slowly is waited for.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import Future
from typing import Any

import httpx2

from registry.errors import Unavailable

Message = MutableMapping[str, Any]
App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
ADDRESS = ("127.0.0.1", 80)


class AppTransport(httpx2.BaseTransport):
    """A transport to `app`, from `start` until `close`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="soup-store", daemon=True)
        self._lifespan = _Lifespan(app)

    def start(self) -> None:
        """Start the loop, and the application on it."""
        self._thread.start()
        self._wait(self._lifespan.start())

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, once it has begun; its body is read from a stream. Raises what the application raises."""
        exchange = _Exchange(self._app, request, self._loop)
        return exchange.begin()

    def close(self) -> None:
        """Stop the application, then the loop; again is nothing."""
        if self._thread.is_alive():
            self._wait(self._lifespan.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        if not self._loop.is_closed():
            self._loop.close()

    def _wait(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Lifespan:
    """Start and end of an application, as ASGI has them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._said: asyncio.Queue[Message] = asyncio.Queue()
        self._heard: asyncio.Queue[Message] = asyncio.Queue()
        self._task: asyncio.Future[None] | None = None
        self._started = False

    async def start(self) -> None:
        """Raises Unavailable where the application says that it cannot."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._task = asyncio.ensure_future(self._app(scope, self._said.get, self._heard.put))
        await self._tell("startup")
        self._started = True

    async def stop(self) -> None:
        """Wait until it has ended."""
        if self._started:
            await self._tell("shutdown")
        if self._task is not None:
            await self._task

    async def _tell(self, what: str) -> None:
        await self._said.put({"type": f"lifespan.{what}"})
        answer = await self._heard.get()
        if answer["type"] != f"lifespan.{what}.complete":
            raise Unavailable(f"The application failed at its {what}: {answer.get('message', '')}")


class _Exchange(httpx2.SyncByteStream):
    """One request and its answer, whose body this is."""

    def __init__(self, app: App, request: httpx2.Request, loop: asyncio.AbstractEventLoop) -> None:
        self._app = app
        self._request = request
        self._loop = loop
        self._body: Iterator[bytes] | None = iter(request.stream)  # type: ignore[arg-type]  # a sync client's
        self._begun: Future[tuple[int, list[tuple[bytes, bytes]]]] = Future()
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._taken = asyncio.Event()
        self._gone = asyncio.Event()
        self._run: Future[None] | None = None
        self._whole = False
        """All of the answer is there, whatever the application does after it."""

    def begin(self) -> httpx2.Response:
        """The answer as soon as status and headers are there."""
        self._run = asyncio.run_coroutine_threadsafe(self._answer(), self._loop)
        status, headers = self._begun.result()
        return httpx2.Response(status, headers=headers, stream=self, request=self._request)

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            self._loop.call_soon_threadsafe(self._taken.set)
            yield piece
        if self._run is not None and not self._whole:
            self._run.result()  # raises what went wrong after the answer had begun

    def close(self) -> None:
        """Nobody reads on: the application hears that the client is gone."""
        if self._run is not None and not self._run.done():
            self._loop.call_soon_threadsafe(self._gone.set)

    async def _answer(self) -> None:
        try:
            await self._app(self._scope(), self._receive, self._send)
        except BaseException as error:
            if not self._begun.done():
                self._begun.set_exception(error)
            raise
        finally:
            self._pieces.put(None)

    def _scope(self) -> MutableMapping[str, Any]:
        url = self._request.url
        path, _, query = url.raw_path.partition(b"?")
        return {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": self._request.method, "scheme": url.scheme, "path": url.path, "raw_path": path, "root_path": "",
            "query_string": query, "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "client": ADDRESS, "server": ADDRESS, "state": {},
        }  # fmt: skip

    async def _receive(self) -> Message:
        if self._body is not None:
            piece = await asyncio.to_thread(next, self._body, None)
            if piece is None:
                self._body = None
            return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun.set_result((message["status"], list(message.get("headers", ()))))
            return
        if self._gone.is_set():
            return  # as a socket: what is sent to nobody is lost, and `receive` says so
        if message.get("body"):
            await self._hand_over(bytes(message["body"]))
        if not message.get("more_body", False):
            self._whole = True
            self._pieces.put(None)

    async def _hand_over(self, piece: bytes) -> None:
        """Wait until somebody takes it, or is gone."""
        self._taken.clear()
        self._pieces.put(piece)
        taken, gone = asyncio.ensure_future(self._taken.wait()), asyncio.ensure_future(self._gone.wait())
        _, waiting = await asyncio.wait((taken, gone), return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
