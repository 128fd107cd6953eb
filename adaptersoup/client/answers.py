"""Parsing of a server's answers: JSON values, errors of `registry.errors`, server-sent events, results of jobs.

Used by `adaptersoup.client` and `soup train submit`. Knows no route, and sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx2

from registry import errors
from registry.errors import Busy, Cancelled, Internal, InvalidName, SoupError, Unavailable, rebuild
from registry.names import LOOPBACK
from registry.progress import Progress

Json = dict[str, Any]
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
"""Errors for answers without an error code of ours: those of a proxy, and the empty ones to HEAD."""
DOWNLOAD_ELSEWHERE = 307
"""Status of a download that a server with an object store redirects to its bucket."""
NO_CONTENT = 204
MAX_FITS = 5
LONGEST_EMBEDDING = 3600
"""Seconds to wait for the samples of a pool of which none is embedded yet."""
DONE = frozenset({"succeeded", "failed", "cancelled"})
"""States of a job that has ended."""


def check_open(client: httpx2.Client | httpx2.AsyncClient) -> None:
    """Raise Unavailable if the client is closed."""
    if client.is_closed:
        raise Unavailable("This client is closed: make another one.")


def architecture_of(base: Mapping[str, Any]) -> Mapping[str, Any]:
    """The architecture in a server's answer for a base model; raises Unavailable for an older server's."""
    architecture: Mapping[str, Any] | None = base.get("architecture")
    if architecture is None:
        raise Unavailable(
            f"The server does not describe the architecture of {base['id']!r}: update the server to this version."
        )
    return architecture


@contextmanager
def translated(base_url: str) -> Iterator[None]:
    """Raise errors of the transport as Unavailable, in a sentence that says what to do."""
    try:
        yield
    except httpx2.ConnectError as error:
        raise Unavailable(
            f"Nothing answers at {base_url}: is the server running? `soup serve` starts one, "
            "--url (or SOUP_URL) names another."
        ) from error
    except httpx2.TimeoutException as error:
        raise Unavailable(
            f"{base_url} did not answer in time: try again, or set a longer SOUP_TIMEOUT (seconds)."
        ) from error
    except httpx2.HTTPError as error:
        raise Unavailable(
            f"The connection to {base_url} broke ({str(error) or type(error).__name__}); try again."
        ) from error


def check_ours(response: httpx2.Response, is_ours: bool) -> None:
    """Raise Unavailable for a success that is another server's, such as the page of a proxy."""
    if not is_ours:
        raise Unavailable(
            f"{response.request.method} {response.request.url} was not answered by an AdapterSoup server: check the "
            "address, and any proxy in front of the server."
        )


def object_of(response: httpx2.Response) -> Json:
    """The JSON object of an answer; raises Unavailable if the body is something else.

    Under /v1/ each has the field `object`, which names its kind.
    """
    value: Json = _parsed(response.text)
    check_ours(response, isinstance(value, dict) and ("object" in value or "/v1/" not in response.request.url.path))
    return value


def rows_of(page: Json) -> list[Json]:
    """The rows of a list; raises Unavailable if the object is something else."""
    rows = page.get("data")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Unavailable("The answer is no list: is this an AdapterSoup server?")
    return rows


def error_of(response: httpx2.Response) -> SoupError:
    """The error of a refused or redirected request: for a refusal an instance of the class that its code names."""
    if response.is_redirect:
        return _redirected(response)
    value = _parsed(response.text)
    fields = value.get("error") if isinstance(value, dict) else None
    if isinstance(fields, dict) and isinstance(fields.get("message"), str):
        error = _rebuilt(fields, status=response.status_code)
        if isinstance(error, Internal) and "x-request-id" in response.headers:
            error.problems = (f"request id {response.headers['x-request-id']}",)
    else:
        error = BY_STATUS.get(response.status_code, SoupError)(
            f"{response.request.method} {response.request.url} was refused with status {response.status_code} "
            f"{response.reason_phrase}."
        )
    pause = response.headers.get("retry-after", "")
    if isinstance(error, Busy | Unavailable) and pause.isascii() and pause.isdigit() and len(pause) < 10:
        error.retry_after = int(pause)
    elif isinstance(error, Unavailable):
        error.retry_after = None
    return error


def _redirected(response: httpx2.Response) -> Unavailable:
    """The error for a redirect: it is not followed, since the key would go to another address."""
    try:
        target = origin_of(response.url.join(response.headers.get("location", "")))
    except httpx2.InvalidURL:
        target = "an invalid address"
    return Unavailable(
        f"{response.request.method} {response.url} is redirected to {target}, and was not carried out: if that is the "
        "server, give its address with --url or SOUP_URL."
    )


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


def drop_none(values: Mapping[str, Any]) -> Json:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def path_segment(text: str) -> str:
    """A text quoted as one segment of a URL's path.

    Raises InvalidName for one that leads to another path, and for characters of no name, such as half a surrogate pair.
    """
    if text in {"", ".", ".."} or not text.isprintable():
        raise InvalidName(f"{text!r} is neither a name nor an id.")
    return quote(text, safe="")


def event_content(event: httpx2.ServerSentEvent) -> tuple[str, Any] | None:
    """An event's name and JSON value; None for `[DONE]`. Raises an error that the server sent as an event."""
    if event.data == "[DONE]":
        return None
    value = _parsed(event.data)
    error = value.get("error") if isinstance(value, dict) and len(value) == 1 else None
    if isinstance(error, dict) and "message" in error:  # a failed job has an error too, beside its other fields
        raise _rebuilt(error, status=500)
    if not isinstance(value, dict):
        raise Unavailable("An event of the answer is not a JSON object: is this an AdapterSoup server?")
    return event.event, value


def redirect_target(response: httpx2.Response) -> httpx2.URL | None:
    """The URL to which a 307 redirects a download; None if the answer is the download itself.

    The request to it must carry no key. Raises Unavailable if the target is not an HTTP address, or is plain http on
    another machine after https.
    """
    if response.status_code != DOWNLOAD_ELSEWHERE:
        return None
    try:
        target = response.url.join(response.headers.get("location", ""))
    except httpx2.InvalidURL:
        target = httpx2.URL("")
    if target.scheme not in {"http", "https"} or not target.host or target == response.url:
        raise Unavailable(
            f"{response.url} redirects a download to an invalid address; it may be another kind of server."
        )
    if response.url.scheme == "https" and target.scheme == "http" and target.host not in LOOPBACK:
        raise Unavailable(
            f"{response.url} redirects a download to {origin_of(target)}, which is not encrypted: ask the "
            "operator to give the bucket an https:// address (AWS_ENDPOINT_URL)."
        )
    return target


def origin_of(url: httpx2.URL) -> str:
    """The scheme, host and port of a URL, without its query, which may hold a signature."""
    return f"{url.scheme}://{url.netloc.decode()}"


def check_redirected(response: httpx2.Response) -> None:
    """Raise Unavailable if the target of a redirect refuses the download."""
    if response.status_code not in (200, 206):
        raise Unavailable(
            f"The bucket at {origin_of(response.url)} answered a download with status {response.status_code}: "
            "try again, and check the bucket's address and the clock of its server."
        )


def report_progress(value: Any, progress: Progress | None) -> None:
    """Report the progress that an event of a job carries, if any."""
    event = value.get("progress", value) if isinstance(value, dict) else None
    if progress is not None and isinstance(event, dict) and "done" in event:
        progress(int(event["done"]), int(event.get("total") or 0), str(event.get("message") or ""))


def result_in(job: Json) -> Json:
    """The result of a job that has succeeded; raises Unavailable if it has none."""
    if not isinstance(job.get("result"), dict):
        raise Unavailable(f"Job {job['id']} left no result; `soup jobs show {job['id']}` shows it.")
    return dict(job["result"])


def check_succeeded(job: Json) -> Json:
    """The job, if it has succeeded; raises Cancelled for a cancelled one, and the error of a failed one."""
    if job["state"] == "succeeded":
        return job
    if job["state"] == "cancelled":
        raise Cancelled(f"Job {job['id']} was cancelled.")
    error = job.get("error") or {}
    message = str(error.get("message") or f"Job {job['id']} failed; the server's log says why.")
    raise rebuild(str(error.get("code")), message, param=error.get("param"), problems=error.get("problems") or ())
