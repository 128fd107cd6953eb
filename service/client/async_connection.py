"""One HTTP connection to a server that runs the steps of a call on an event loop, beside others.

Used by `service.client` alone; the same as `connection`, which says more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import httpx2

from service.client.answers import (
    check_elsewhere,
    check_open,
    error_of,
    heard,
    model_header,
    options_of,
    origin_of,
    place_elsewhere,
    translated,
)
from service.client.steps import Aside, Exchange, Fetch, Hear, Listing, Pause, Sizes, Step, Steps, Streamed

T = TypeVar("T")


class AsyncStream(Generic[T]):
    """What comes in pieces, gone through with `async for`; `async with` ends it on the server too, as `Stream` does."""

    def __init__(self, pieces: AsyncGenerator[T]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await anext(self._pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End it, here and on the server; again is nothing."""
        await self._pieces.aclose()


class AsyncConnection:
    """A pool of connections to `base_url`, used from one event loop. `pause` is the tests' seam for time."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        timeout: float = 600.0,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        sizes: Sizes = Sizes(),
    ) -> None:
        options = options_of(base_url, api_key, timeout)
        self.base_url: str = options["base_url"]
        self.pause = pause
        self.sizes = sizes
        self._timeout = timeout
        self._http = httpx2.AsyncClient(**options, transport=transport)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def run(self, steps: Steps[T]) -> T:
        """What a call comes to; what goes wrong in a step, being cancelled too, is raised inside of it."""
        answer: Any = None
        wrong: BaseException | None = None
        while True:
            try:
                step = steps.send(answer) if wrong is None else steps.throw(wrong)
            except StopIteration as end:
                value: T = end.value
                return value
            answer = wrong = None
            try:
                answer = await self._done(step)
            except BaseException as error:
                wrong = error

    async def rows(self, found: Listing[T]) -> AsyncIterator[T]:
        """Every row of a list, a page at a time."""
        cursor, had = None, 0
        while True:
            rows, cursor = await self.run(found.page(cursor, had))
            for row in rows:
                yield row
            had += len(rows)
            if cursor is None:
                return

    def events(self, found: Streamed[T]) -> AsyncStream[T]:
        """Events as they come; ends at `[DONE]` or with the stream. An error in it is raised."""
        return AsyncStream(self._events(found))

    async def _events(self, found: Streamed[T]) -> AsyncGenerator[T]:
        async with self._open(found.method, found.path, found.json) as response:
            async for event in httpx2.EventSource(response):
                said = heard(event)
                if said is None:
                    return
                yield found.read(*said)

    async def _done(self, step: Step) -> Any:
        if isinstance(step, Exchange):
            check_open(self._http)
            with translated(self.base_url):
                return await self._http.request(
                    step.method, step.path, json=step.json, content=step.body, params=step.params,
                    headers={**model_header(step.json), **(step.headers or {})},
                )  # fmt: skip
        if isinstance(step, Pause):
            await self.pause(step.seconds)
        elif isinstance(step, Hear):
            async with self.events(Streamed("GET", step.path, None, step.heard)) as said:
                async for over in said:
                    if over:
                        break
        elif isinstance(step, Fetch):
            async with self._fetched(step.path) as response:
                total = int(response.headers.get("content-length", 0))
                async for piece in response.aiter_bytes():
                    await asyncio.to_thread(step.taken, piece, total)
        elif isinstance(step, Aside):
            return await asyncio.to_thread(step.work)
        return self.sizes

    @asynccontextmanager
    async def _fetched(self, path: str) -> AsyncIterator[httpx2.Response]:
        """A download, from the server or from where it sends to; there without the key."""
        async with self._open("GET", path, None) as response:
            place = place_elsewhere(response)
            if place is None:
                yield response
                return
        origin = origin_of(place)
        keyless = options_of(origin, None, self._timeout)
        with translated(origin):
            async with httpx2.AsyncClient(**keyless) as other, other.stream("GET", place) as response:
                check_elsewhere(response)
                yield response

    @asynccontextmanager
    async def _open(self, method: str, path: str, json: Mapping[str, Any] | None) -> AsyncIterator[httpx2.Response]:
        """An answer whose body is read as it comes."""
        check_open(self._http)
        with translated(self.base_url):
            async with self._http.stream(method, path, json=json, headers=model_header(json)) as response:
                if response.is_error:
                    await response.aread()
                    raise error_of(response)
                yield response
