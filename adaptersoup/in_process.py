"""Requests to an ASGI application of the same process: what a client sends goes to it without a socket.

Used by `Store` under its client. The application runs on an event loop in a thread of its own, any thread may send,
and a body is handed over piece by piece in both directions: whoever reads slowly is waited for.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from concurrent.futures import Future
from contextlib import suppress
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
        self._lock = threading.Lock()
        self._exchanges: set[_Exchange] = set()
        self._closed = False

    def start(self) -> None:
        """Start the loop, and the application on it; raises Unavailable where that cannot start."""
        self._thread.start()
        self._wait(self._lifespan.start())

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer, once it has begun; its body is read from a stream. Raises what the application raises."""
        with self._lock:
            if self._closed:
                raise Unavailable("This store is closed.")
            exchange = _Exchange(self._app, request, self._loop, self._exchanges.discard)
            self._exchanges.add(exchange)
            exchange.begin()
        return exchange.answer()

    def close(self) -> None:
        """End what is being answered, then the application and the loop; again is nothing."""
        with self._lock:
            self._closed = True
        if self._thread.is_alive():
            try:
                self._wait(self._end())
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
        if not self._loop.is_closed():
            self._loop.close()

    async def _end(self) -> None:
        """Whoever waits for an answer hears that there will be none."""
        await asyncio.gather(*(one.end() for one in list(self._exchanges)))
        await self._lifespan.stop()

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
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
        """Raises Unavailable where the application says that it cannot, or ends."""
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
        self._task = asyncio.ensure_future(self._app(scope, self._said.get, self._heard.put))
        await self._tell("startup")
        self._started = True

    async def stop(self) -> None:
        """Wait until it has ended; what goes wrong there was said, or changes nothing any more."""
        if self._started:
            with suppress(Unavailable):
                await self._tell("shutdown")
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _tell(self, what: str) -> None:
        assert self._task is not None
        await self._said.put({"type": f"lifespan.{what}"})
        heard = asyncio.ensure_future(self._heard.get())
        await asyncio.wait((heard, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not heard.done():
            heard.cancel()
            raise Unavailable(f"The application ended at its {what}.") from self._task.exception()
        answer = heard.result()
        if answer["type"] != f"lifespan.{what}.complete":
            raise Unavailable(f"The application failed at its {what}: {answer.get('message', '')}")


class _Exchange(httpx2.SyncByteStream):
    """One request and its answer, whose body this is."""

    def __init__(
        self, app: App, request: httpx2.Request, loop: asyncio.AbstractEventLoop, done: Callable[[_Exchange], None]
    ) -> None:
        self._app = app
        self._request = request
        self._loop = loop
        self._done = done
        self._body: Iterator[bytes] | None = iter(request.stream)  # type: ignore[arg-type]  # a sync client's
        self._begun: Future[tuple[int, list[tuple[bytes, bytes]]]] = Future()
        self._pieces: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._taken = asyncio.Event()
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None

    def begin(self) -> None:
        """Have the application answer."""
        asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    def answer(self) -> httpx2.Response:
        """The answer as soon as status and headers are there; where waiting for it is broken off, nobody is there."""
        try:
            status, headers = self._begun.result()
        except BaseException:
            self.close()
            raise
        return httpx2.Response(status, headers=headers, stream=self, request=self._request)

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._pieces.get()) is not None:
            self._tell(self._taken)
            yield piece
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """Nobody reads on: the application hears that the client is gone."""
        self._tell(self._gone)

    async def end(self) -> None:
        """Break off, and wait for that."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _tell(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the loop is closed: there nobody waits
            self._loop.call_soon_threadsafe(event.set)

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        try:
            await self._app(self._scope(), self._receive, self._send)
        except asyncio.CancelledError:
            self._fail(Unavailable("The store was closed before the answer was whole."))
        except Exception as error:
            self._fail(error)
        finally:
            self._pieces.put(None)
            self._done(self)

    def _fail(self, error: Exception) -> None:
        self._failed = error
        if not self._begun.done():
            self._begun.set_exception(error)

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
            self._pieces.put(None)  # whatever the application does after it

    async def _hand_over(self, piece: bytes) -> None:
        """Wait until somebody takes it, or is gone."""
        self._taken.clear()
        self._pieces.put(piece)
        taken, gone = asyncio.ensure_future(self._taken.wait()), asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait((taken, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            taken.cancel()
            gone.cancel()
