"""What a call does, apart from who does it: a generator that yields steps and is given what came of each.

A call of several requests (wait while a pool is embedded, follow a job, send a file in parts) is written once, and run
by `connection` in this thread or by `async_connection` on an event loop. Lists and streams are values (`Listing`,
`Streamed`), as how they are gone through differs. Knows the shapes of errors and pages, no route.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx2

from registry.errors import Busy, Internal
from service.client.answers import error_of, given, object_of

T = TypeVar("T")
Other = TypeVar("Other")
Json = dict[str, Any]
MAX_TRIES = 6
MAX_PAUSE = 60.0


@dataclass(frozen=True)
class Exchange:
    """One request; gives its answer, read completely, whatever its status."""

    method: str
    path: str
    json: Mapping[str, Any] | None = None
    body: bytes | None = None
    params: Mapping[str, Any] | None = None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Hear:
    """Events of a path, each given to `heard` by its name and value until that is True, or there are no more."""

    path: str
    heard: Callable[[str, Any], bool]


@dataclass(frozen=True)
class Fetch:
    """A body piece by piece: each is given to `taken`, with how many bytes there are in all (0 where nobody says)."""

    path: str
    taken: Callable[[bytes, int], object]


@dataclass(frozen=True)
class Aside:
    """Work on this machine that takes a while, such as reading a large file; gives what it returns."""

    work: Callable[[], Any]


@dataclass(frozen=True)
class Sizes:
    """How many bytes travel in which way. A step too: it gives those of the client that runs it."""

    inline: int = 1024 * 1024
    """Texts and files of at most so many bytes travel inside of a request, larger ones as blobs."""
    part: int = 8 * 1024 * 1024
    """Blobs of at most so many bytes are sent in one request, larger ones in parts of so many."""


Step = Exchange | Pause | Hear | Fetch | Aside | Sizes
Steps = Generator[Step, Any, T]


@dataclass(frozen=True)
class Listing(Generic[T]):
    """The rows of a path, one page at a time, up to `limit` rows; each is `read` as what it is."""

    path: str
    filters: Mapping[str, str | Sequence[str] | None]
    limit: int | None
    read: Callable[[Json], T]

    def of(self, read: Callable[[T], Other]) -> Listing[Other]:
        """The same rows, read as something else."""
        return Listing(self.path, self.filters, self.limit, lambda row: read(self.read(row)))

    def page(self, cursor: str | None, had: int) -> Steps[tuple[list[T], str | None]]:
        """The rows at a cursor after `had` others, and the cursor of the next page, if one is wanted."""
        left = None if self.limit is None else self.limit - had
        if left is not None and left <= 0:
            return [], None
        size = None if left is None else min(left, 100)
        page = yield from json_of("GET", self.path, params={**self.filters, "limit": size, "cursor": cursor})
        rows = [self.read(row) for row in page["data"]]
        return rows, page.get("next_cursor") or None

    def whole(self) -> Steps[list[T]]:
        """All rows."""
        rows: list[T] = []
        cursor: str | None = None
        while True:
            page, cursor = yield from self.page(cursor, len(rows))
            rows += page
            if cursor is None:
                return rows


@dataclass(frozen=True)
class Streamed(Generic[T]):
    """The server-sent events of a request, each `read` from its name and its JSON value."""

    method: str
    path: str
    json: Mapping[str, Any] | None
    read: Callable[[str, Any], T]

    def of(self, read: Callable[[T], Other]) -> Streamed[Other]:
        """The same events, read as something else."""
        return Streamed(self.method, self.path, self.json, lambda name, value: read(self.read(name, value)))


def send(
    method: str,
    path: str,
    *,
    json: Mapping[str, Any] | None = None,
    body: bytes | None = None,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    repeat: bool = True,
) -> Steps[httpx2.Response]:
    """The answer to one request, read completely. Raises the error the server names.

    With `repeat` a full queue (429) is waited for as the server asks, a few times.
    """
    exchange = Exchange(method, path, json, body, params and given(params), headers)
    for tries in range(1, MAX_TRIES + 1):
        response: httpx2.Response = yield exchange
        if not response.is_error:
            return response
        error = error_of(response)
        if not (repeat and isinstance(error, Busy) and tries < MAX_TRIES and error.retry_after <= MAX_PAUSE):
            raise error
        yield Pause(error.retry_after)
    raise Internal("a request was neither answered nor refused")


def json_of(method: str, path: str, **request: Any) -> Steps[Json]:
    """As `send`; gives the JSON object of the answer."""
    return object_of((yield from send(method, path, **request)))


def data_of(method: str, path: str, **request: Any) -> Steps[list[Json]]:
    """As `send`; gives the rows of an answer that is a whole list."""
    return list((yield from json_of(method, path, **request))["data"])


def listing(path: str, filters: Mapping[str, str | Sequence[str] | None], limit: int | None) -> Listing[Json]:
    """The rows of a path as they are."""
    return Listing(path, filters, limit, lambda row: row)


def streamed(path: str, json: Mapping[str, Any]) -> Streamed[Json]:
    """The values of a POST's events as they are."""
    return Streamed("POST", path, json, lambda _, value: value)
