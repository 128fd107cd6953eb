"""One HTTP connection to a server: sends, retries what may be repeated, reads pages, and raises our own errors.

Used by `service.client` alone. Knows no route and no value of the registry, only the shapes of errors and pages. Tests
put another transport underneath (`httpx2.MockTransport`, or the real application in process).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx2

from registry import errors
from registry.errors import Busy, Internal, InvalidParameter, SoupError, Unavailable

Json = dict[str, Any]
Body = bytes | Callable[[], Iterator[bytes]]
"""What is sent: bytes, or a function that gives them in chunks (asked again when a request is repeated)."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_TRIES = 6
MAX_PAUSE = 60.0
BY_STATUS: dict[int, type[SoupError]] = {
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.NotFound,
    408: errors.TooSlow,
    409: errors.Conflict,
    410: errors.Retired,
    412: errors.PreconditionFailed,
    413: errors.TooLarge,
    416: errors.WrongOffset,
    429: errors.Busy,
    500: errors.Internal,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}
"""For answers without a code of ours (a proxy's, or HEAD's empty ones)."""


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
    ) -> None:
        url = _checked(base_url)
        headers = {"user-agent": "adaptersoup-client"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self.base_url = str(url).rstrip("/")
        self.pause = pause
        self._http = httpx2.Client(
            base_url=self.base_url,
            headers=headers,
            transport=transport,
            timeout=httpx2.Timeout(timeout, connect=min(10.0, timeout)),
            trust_env=url.host not in LOOPBACK,  # a proxy of the environment never stands before this machine
        )

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def send(
        self,
        method: str,
        path: str,
        *,
        json: Mapping[str, Any] | None = None,
        body: Body | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: bool = True,
    ) -> httpx2.Response:
        """The answer to one request, read completely. Raises the error the server names.

        With `repeat` a full queue (429) is waited for as the server asks, a few times.
        """
        for tries in range(1, MAX_TRIES + 1):
            with self._translated():
                response = self._http.request(
                    method, path, json=json, content=body() if callable(body) else body,
                    params=params and given(params), headers=headers,
                )  # fmt: skip
            if not response.is_error:
                return response
            error = error_of(response)
            if not (repeat and isinstance(error, Busy) and tries < MAX_TRIES and error.retry_after <= MAX_PAUSE):
                raise error
            self.pause(error.retry_after)
        raise Internal("a request was neither answered nor refused")

    def json(self, method: str, path: str, **request: Any) -> Json:
        """As `send`; gives the JSON object of the answer."""
        return object_of(self.send(method, path, **request))

    def pages(self, path: str, filters: Mapping[str, str | Sequence[str] | None], limit: int | None) -> Iterator[Json]:
        """Every row of a list, one page at a time, up to `limit` rows."""
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = None if left is None else min(left, 100)
            page = self.json("GET", path, params={**filters, "limit": size, "cursor": cursor})
            yield from page["data"]
            left = None if left is None else left - len(page["data"])
            cursor = page.get("next_cursor")
            if not cursor:
                return

    @contextmanager
    def open(self, method: str, path: str, *, json: Mapping[str, Any] | None = None) -> Iterator[httpx2.Response]:
        """An answer whose body is read as it comes (downloads, event streams)."""
        with self._translated(), self._http.stream(method, path, json=json) as response:
            if response.is_error:
                response.read()
                raise error_of(response)
            yield response

    def events(self, method: str, path: str, *, json: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
        """Server-sent events as (name, JSON value); ends at `[DONE]` or with the stream. An error in it is raised."""
        with self.open(method, path, json=json) as response:
            for event in httpx2.EventSource(response):
                if event.data == "[DONE]":
                    return
                value = _parsed(event.data)
                error = value.get("error") if isinstance(value, dict) and len(value) == 1 else None
                if isinstance(error, dict) and "message" in error:  # alone: a job that failed has more to it
                    raise _rebuilt(error, status=500)
                yield event.event, value

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of the transport as ours, in a sentence that says what to do."""
        try:
            yield
        except httpx2.ConnectError as error:
            raise Unavailable(
                f"Nothing answers at {self.base_url}: is the server running? `soup serve` starts one, "
                "--url (or SOUP_URL) names another."
            ) from error
        except httpx2.TimeoutException as error:
            raise Unavailable(
                f"{self.base_url} did not answer in time: try again, or give it longer with SOUP_TIMEOUT (seconds)."
            ) from error
        except httpx2.HTTPError as error:
            raise Unavailable(
                f"The connection to {self.base_url} broke ({error or type(error).__name__}); try again."
            ) from error


def object_of(response: httpx2.Response) -> Json:
    """The JSON object of an answer; raises Unavailable where something else answered."""
    value = _parsed(response.text)
    if not isinstance(value, dict):
        raise Unavailable(
            f"{response.request.url} answered with something else than JSON: is it an AdapterSoup server?"
        )
    return value


def error_of(response: httpx2.Response) -> SoupError:
    """The error of a refused request, as the class its code names."""
    value = _parsed(response.text)
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        found = _rebuilt(error, status=response.status_code)
        if isinstance(found, Internal) and "x-request-id" in response.headers:
            found.problems = (f"request id {response.headers['x-request-id']}",)
    else:
        found = BY_STATUS.get(response.status_code, SoupError)(
            f"{response.request.method} {response.request.url} was refused with status {response.status_code} "
            f"{response.reason_phrase}."
        )
    pause = response.headers.get("retry-after", "")
    if isinstance(found, Busy | Unavailable) and pause.isascii() and pause.isdigit():
        found.retry_after = int(pause)
    return found


def _rebuilt(error: Mapping[str, Any], *, status: int) -> SoupError:
    code, param, problems = error.get("code"), error.get("param"), error.get("problems")
    return errors.rebuild(
        code if isinstance(code, str) and code in errors.BY_CODE else BY_STATUS.get(status, SoupError).code,
        str(error["message"]),
        param=param if isinstance(param, str) else None,
        problems=[str(problem) for problem in problems] if isinstance(problems, list) else (),
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def given(values: Mapping[str, Any]) -> Json:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def part(text: str) -> str:
    """A text as one part of a path."""
    return quote(text, safe="")


def _checked(base_url: str) -> httpx2.URL:
    try:
        url = httpx2.URL(base_url)
    except (httpx2.InvalidURL, TypeError):
        url = httpx2.URL("")
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidParameter(f"{base_url!r} is not an address: write it as http://host:port.", param="url")
    return url
