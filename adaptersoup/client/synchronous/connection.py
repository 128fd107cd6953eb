"""An HTTP connection to a server: JSON answers, lists by page, server-sent events and downloads.

Knows no route. Errors are those of `registry.errors`. Tests give it another transport (`httpx2.MockTransport`). It
retries requests that a full queue refused. `blobs` retries parts of an upload (with the pauses of `client.uploading`),
and `client.client` pushes of the command line. `calls` follows jobs over a restart of the server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import httpx2

from adaptersoup.client.answers import (
    DOWNLOAD_ELSEWHERE,
    Json,
    check_open,
    check_ours,
    check_redirected,
    drop_none,
    error_of,
    event_content,
    object_of,
    origin_of,
    redirect_target,
    rows_of,
    translated,
)
from adaptersoup.client.http_options import connection_options, model_header
from adaptersoup.client.waiting import Pause, sleep
from registry.errors import Busy, InvalidParameter, Unavailable

T = TypeVar("T")
MAX_TRIES = 6
MAX_PAUSE = 60.0
ADDRESS = "http://127.0.0.1:8000"
MIB = 1024 * 1024


class Closing(ABC):
    """Base of objects that are closed at the end of their `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close it; a second call does nothing."""


class Stream(Closing, Iterator[T]):
    """Items of an answer as they arrive; leaving its `with` block, or closing it, ends the answer on the server too."""

    def __init__(self, items: Generator[T]) -> None:
        self._items = items

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        """End the answer, here and on the server; a second call does nothing."""
        self._items.close()


class Connection(Closing):
    """A pool of connections to the server at `base_url`.

    `transport` replaces the network and `pause` the waiting between two requests. Texts and files of at most
    `inline_bytes` are sent inside a request, larger ones as blobs, and those of more than `part_bytes` in parts.
    """

    def __init__(
        self,
        base_url: str = ADDRESS,
        api_key: str | None = None,
        *,
        transport: httpx2.BaseTransport | None = None,
        timeout: float = 600.0,
        pause: Pause = sleep,
        inline_bytes: int = MIB,
        part_bytes: int = 8 * MIB,
    ) -> None:
        options = connection_options(base_url, api_key, timeout)
        self.base_url: str = options["base_url"]
        self.pause = pause
        self.inline_bytes = inline_bytes
        self.part_bytes = part_bytes
        self._timeout = timeout
        self._http = httpx2.Client(**options, transport=transport)

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: bool = True,
    ) -> httpx2.Response:
        """The whole answer to a request; raises the error that the server names.

        With `repeat` a request refused by a full queue (429) is sent again after the pause that the server names, up
        to MAX_TRIES times.
        """
        tries = 1
        while True:
            request = self._request(
                method, path, json, content=body, params=params and drop_none(params), headers=headers
            )
            with translated(self.base_url):
                response = self._http.send(request)
            if response.is_success:
                return response
            error = error_of(response)
            if not (repeat and isinstance(error, Busy) and tries < MAX_TRIES and error.retry_after <= MAX_PAUSE):
                raise error
            tries += 1
            self.pause(error.retry_after)

    def json(self, method: str, path: str, **request: Any) -> Json:
        """The JSON object of an answer; arguments are those of `send`."""
        return object_of(self.send(method, path, **request))

    def data(self, method: str, path: str, **request: Any) -> list[Json]:
        """The rows of an answer that is a complete list; arguments are those of `send`."""
        return rows_of(self.json(method, path, **request))

    def csv(self, path: str, filters: Mapping[str, str | Sequence[str] | None]) -> str:
        """All rows of a path, as CSV."""
        response = self.send("GET", path, params={**filters, "format": "csv"})
        check_ours(response, response.headers.get("content-type", "").startswith("text/csv"))
        return response.text

    def rows(
        self,
        path: str,
        filters: Mapping[str, str | Sequence[str] | None],
        limit: int | None,
        read: Callable[[Json], T],
    ) -> Iterator[T]:
        """The rows of a path, at most `limit`, in pages of the server's size; `read` converts each to a value."""
        cursor, count = None, 0
        while limit is None or count < limit:
            page = self.json("GET", path, params={**filters, "cursor": cursor})
            rows = rows_of(page)[: None if limit is None else limit - count]
            for row in rows:
                yield read(row)
            count += len(rows)
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def events(
        self, method: str, path: str, json: Mapping[str, Any] | None, read: Callable[[str, Any], T]
    ) -> Stream[T]:
        """Server-sent events, each converted by `read` from its name and JSON value; raises an error among them.

        Raises Unavailable if an answer to POST ends without `[DONE]`.
        """
        return Stream(self._events(method, path, json, read))

    def _events(
        self, method: str, path: str, json: Mapping[str, Any] | None, read: Callable[[str, Any], T]
    ) -> Generator[T]:
        with self._open(method, path, json) as response:
            for event in httpx2.EventSource(response):
                content = event_content(event)
                if content is None:
                    return
                yield read(*content)
        if method == "POST":  # the events of a job end without [DONE]
            raise Unavailable("The answer was cut off before its end: try again.")

    @contextmanager
    def fetched(self, path: str) -> Iterator[httpx2.Response]:
        """The answer to a download, from the server or, without the key, from the target of its redirect."""
        with self._open("GET", path, None) as response:
            target = redirect_target(response)
            if target is None:
                yield response
                return
        origin = origin_of(target)
        keyless = connection_options(origin, None, self._timeout)
        with translated(origin):
            with httpx2.Client(**keyless) as redirected, redirected.stream("GET", target) as response:
                check_redirected(response)
                yield response

    @contextmanager
    def _open(self, method: str, path: str, json: Mapping[str, Any] | None) -> Iterator[httpx2.Response]:
        """An answer whose body is read as it arrives."""
        request = self._request(method, path, json)
        with translated(self.base_url):
            response = self._http.send(request, stream=True)
            try:
                if not response.is_success and response.status_code != DOWNLOAD_ELSEWHERE:
                    response.read()
                    raise error_of(response)
                yield response
            finally:
                response.close()

    def _request(
        self,
        method: str,
        path: str,
        json: Mapping[str, Any] | None,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> httpx2.Request:
        """A request with its headers; raises InvalidParameter if its values cannot be written as JSON or in a URL."""
        check_open(self._http)
        headers = {**model_header(json), **(headers or {})}
        try:
            return self._http.build_request(method, path, json=json, headers=headers, **options)
        except (httpx2.InvalidURL, ValueError) as error:
            raise InvalidParameter(f"The request cannot be sent: {error}.") from error
