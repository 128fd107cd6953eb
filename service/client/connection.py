"""One HTTP connection to a server that runs the steps of a call in this thread, one after the other.

Used by `service.client` alone. Knows no route and no value of the registry. Tests put another transport underneath
(`httpx2.MockTransport`, or the real application in process).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
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


class Stream(Generic[T]):
    """What comes in pieces, gone through with `for`; `with` ends it, on the server too, where not all is wanted."""

    def __init__(self, pieces: Generator[T]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._pieces)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, here and on the server; again is nothing."""
        self._pieces.close()


class Connection:
    """A pool of connections to `base_url`. `pause` waits between tries and is the tests' seam for time."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        transport: httpx2.BaseTransport | None = None,
        timeout: float = 600.0,
        pause: Callable[[float], object] = time.sleep,
        sizes: Sizes = Sizes(),
    ) -> None:
        options = options_of(base_url, api_key, timeout)
        self.base_url: str = options["base_url"]
        self.pause = pause
        self.sizes = sizes
        self._timeout = timeout
        self._http = httpx2.Client(**options, transport=transport)

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def run(self, steps: Steps[T]) -> T:
        """What a call comes to. What goes wrong in a step is raised inside of it, so that it can go on or end well."""
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
                answer = self._done(step)
            except BaseException as error:
                wrong = error

    def rows(self, found: Listing[T]) -> Iterator[T]:
        """Every row of a list, a page at a time."""
        cursor, had = None, 0
        while True:
            rows, cursor = self.run(found.page(cursor, had))
            yield from rows
            had += len(rows)
            if cursor is None:
                return

    def events(self, found: Streamed[T]) -> Stream[T]:
        """Events as they come; ends at `[DONE]` or with the stream. An error in it is raised."""
        return Stream(self._events(found))

    def _events(self, found: Streamed[T]) -> Generator[T]:
        with self._open(found.method, found.path, found.json) as response:
            for event in httpx2.EventSource(response):
                said = heard(event)
                if said is None:
                    return
                yield found.read(*said)

    def _done(self, step: Step) -> Any:
        if isinstance(step, Exchange):
            check_open(self._http)
            with translated(self.base_url):
                return self._http.request(
                    step.method, step.path, json=step.json, content=step.body, params=step.params,
                    headers={**model_header(step.json), **(step.headers or {})},
                )  # fmt: skip
        if isinstance(step, Pause):
            self.pause(step.seconds)
        elif isinstance(step, Hear):
            with self.events(Streamed("GET", step.path, None, step.heard)) as said:
                any(said)
        elif isinstance(step, Fetch):
            with self._fetched(step.path) as response:
                total = int(response.headers.get("content-length", 0))
                for piece in response.iter_bytes():
                    step.taken(piece, total)
        elif isinstance(step, Aside):
            return step.work()
        return self.sizes

    @contextmanager
    def _fetched(self, path: str) -> Iterator[httpx2.Response]:
        """A download, from the server or from where it sends to; there without the key."""
        with self._open("GET", path, None) as response:
            place = place_elsewhere(response)
            if place is None:
                yield response
                return
        origin = origin_of(place)
        keyless = options_of(origin, None, self._timeout)
        with translated(origin), httpx2.Client(**keyless) as other, other.stream("GET", place) as response:
            check_elsewhere(response)
            yield response

    @contextmanager
    def _open(self, method: str, path: str, json: Mapping[str, Any] | None) -> Iterator[httpx2.Response]:
        """An answer whose body is read as it comes."""
        check_open(self._http)
        with (
            translated(self.base_url),
            self._http.stream(method, path, json=json, headers=model_header(json)) as response,
        ):
            if response.is_error:
                response.read()
                raise error_of(response)
            yield response
