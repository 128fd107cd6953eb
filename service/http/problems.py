"""Errors as HTTP answers: the status code of each (400 to 503) and one body, OpenAI's, for all.

The body is {"error": {"message", "type", "param", "code"}}, and `problems` where there are several. No other module
knows status codes of errors. Called by the app's exception handlers, and by the ASGI layers (auth, observe) and
`connections`, which answer before a route is reached. Nothing of what a person sent is echoed here beyond the messages
our own errors carry, and nothing of an unexpected error is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from registry import errors
from registry.errors import SoupError
from registry.spec import UNION_MEMBERS
from registry.spec.wording import said_of
from service.observability.logs import describe
from training.spec import METHODS

log = logging.getLogger("service.request")

STATUS: dict[type[SoupError], int] = {
    errors.Invalid: 400,
    errors.InvalidWeights: 422,
    errors.InvalidSample: 422,
    errors.Incompatible: 422,
    errors.TooLarge: 413,
    errors.NotFound: 404,
    errors.Retired: 410,
    errors.Conflict: 409,
    errors.WrongOffset: 416,
    errors.PreconditionFailed: 412,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.Busy: 429,
    errors.TooSlow: 408,
    errors.Cancelled: 409,
    errors.Unavailable: 503,
    errors.DamagedBlob: 500,
    errors.Internal: 500,
}
"""By class; a class that is not here takes its nearest ancestor's."""

TOO_MUCH = frozenset({STATUS[errors.TooLarge], STATUS[errors.Busy]})
"""Statuses of requests that ask for too much."""
NOT_ALLOWED, OTHER = "method_not_allowed", "http_error"
"""Codes of the framework's errors that no class of ours says."""
CODES = frozenset({*errors.BY_CODE, NOT_ALLOWED, OTHER})
"""Every code that an answer can have."""

MOST_LISTED = 50
"""Problems of one request that are named; how many there are in all is said."""

MEMBERS = {**UNION_MEMBERS, "adapter": METHODS, "response_format": ("text", "json_object", "json_schema")}
"""Field of a request -> names that pydantic puts behind it in an error's place, and nobody sent."""

ABSENT = frozenset({"missing", "union_tag_not_found"})
"""Kinds of pydantic's errors for what was not sent at all."""

INTERNAL_MESSAGE = "Something went wrong on the server; its log has the details under this request id."


class Problem(BaseModel):
    """The inside of an error answer."""

    model_config = ConfigDict(extra="forbid")

    message: str
    type: str
    param: str | None = None
    code: str
    problems: list[str] | None = None
    """Every problem found, where there are several."""


class ErrorBody(BaseModel):
    """An error answer."""

    model_config = ConfigDict(extra="forbid")

    error: Problem


def status_of(error: SoupError) -> int:
    """The HTTP status of one of our errors."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def error_type(status: int) -> str:
    """OpenAI's `type` for a status."""
    named = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return named.get(status, "server_error" if status >= 500 else "invalid_request_error")


def body_of(error: SoupError) -> ErrorBody:
    """One of our errors as its body, also inside of an event stream; `problems` is unset where there is but one.

    Of an Internal the log has what it says, and the body does not.
    """
    if isinstance(error, errors.Internal):
        return unexpected(error)
    problem = Problem(
        message=_sendable(error.message),
        type=error_type(status_of(error)),
        param=None if error.param is None else _sendable(error.param),
        code=error.code,
    )
    if error.problems:
        problem.problems = [_sendable(text) for text in error.problems]
    return ErrorBody(error=problem)


def unexpected(error: BaseException) -> ErrorBody:
    """The body of an error that nobody foresaw, which is written to the log here and shows nothing of it."""
    log.error("request failed", extra={"fields": describe(error)})
    hidden = errors.Internal(INTERNAL_MESSAGE)
    return ErrorBody(
        error=Problem(message=hidden.message, type=error_type(status_of(hidden)), param=None, code=hidden.code)
    )


def _sendable(text: str) -> str:
    """`text` without halves of surrogate pairs, which a message may quote and UTF-8 cannot carry."""
    return text.encode("utf-8", "replace").decode()


def response_of(error: SoupError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """One of our errors as a response: the status, and the headers that belong to it."""
    return ProblemResponse(body_of(error), status_of(error), headers_of(error) | dict(headers or {}))


def headers_of(error: SoupError) -> dict[str, str]:
    """The headers that belong to one of our errors."""
    extra: dict[str, str] = {}
    if isinstance(error, errors.Busy | errors.Unavailable):
        extra["retry-after"] = str(error.retry_after)
    if isinstance(error, errors.WrongOffset):
        extra |= held_headers(error.offset)
    if isinstance(error, errors.Unauthenticated):
        extra["www-authenticate"] = "Bearer"
    if isinstance(error, errors.TooSlow):  # what comes after all is no request
        extra["connection"] = "close"
    return extra


def noticed(request: Request, error: SoupError) -> dict[str, str]:
    """The headers of an answer to this request, which is counted as one beyond a limit where that is why."""
    if isinstance(error, errors.RateLimitExceeded | errors.QuotaExceeded):
        request.state.over_limit = error.param  # `observe` counts it
    found: dict[str, str] = getattr(request.state, "rate_headers", dict)()
    return headers_of(error) | found | getattr(request.state, "problem_headers", _none)(error)


def held_headers(offset: int) -> dict[str, str]:
    """How much of an upload is held, as headers: the number of its bytes, and their Range where there are any."""
    return {"upload-offset": str(offset), **({"range": f"0-{offset - 1}"} if offset else {})}


def response_of_unexpected(body: ErrorBody) -> JSONResponse:
    """What `unexpected` gave, as a response."""
    return ProblemResponse(body, status_of(errors.Internal(INTERNAL_MESSAGE)), None)


class ProblemResponse(JSONResponse):
    """An error answer, which leaves its code in the state of the request: `observe` counts it."""

    def __init__(self, body: ErrorBody, status: int, headers: Mapping[str, str] | None) -> None:
        super().__init__(body.model_dump(exclude_unset=True), status_code=status, headers=headers)
        self._code = body.error.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        scope.setdefault("state", {})["error_code"] = self._code
        await super().__call__(scope, receive, send)


def from_validation(found: Sequence[Mapping[str, Any]]) -> SoupError:
    """Validation errors of a request as one of ours: a sentence that names the field, and the list when several."""
    sentences = [_sentence(error) for error in found[:MOST_LISTED]]
    where = _place(found[0]) if found else ""
    named = where.endswith(("config.method", "config.structure")) and found[0]["type"] not in ABSENT
    return (errors.UnknownMethod if named else errors.InvalidParameter)(
        (sentences[0] if sentences else "The request is not valid.") + errors.more_problems(len(found), stop="."),
        param=where or None,
        problems=sentences if len(sentences) > 1 else (),
    )


def _sentence(error: Mapping[str, Any]) -> str:
    """'Field 'x.y': input should be ...', from one pydantic error; the input itself is left out."""
    field = _place(error)
    kind, message = str(error["type"]), said_of(error)
    if kind == "json_invalid":
        return f"The body is not valid JSON: {error.get('ctx', {}).get('error', 'it cannot be read')}."
    if kind in ABSENT:
        return f"Field '{field}' is missing." if field else "The request has no JSON body."
    if kind == "extra_forbidden":
        return f"Field '{field}' is not known here."
    if kind == "union_tag_invalid":
        said = error["ctx"]
        return f"Field '{field}': {str(said['tag'])[:80]!r} is none of {said['expected_tags']}."
    if not field and kind in {"model_attributes_type", "dict_type", "model_type"}:
        return "The body must be a JSON object sent with 'content-type: application/json'."
    if not field:
        return message[:1].upper() + message[1:] + "."
    return f"Field '{field}': {message[:1].lower() + message[1:]}."


def _place(error: Mapping[str, Any]) -> str:
    """The field an error is about; of a union that is told apart by a field, that field."""
    kind, loc = str(error["type"]), list(error["loc"])
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        loc.append(str(error["ctx"]["discriminator"]).strip("'"))
    return _field(loc)


def _field(loc: Sequence[Any]) -> str:
    """A pydantic location as a path without the part of the request it came from: `sample.texts.3`."""
    parts = [str(part) for part in loc]
    if parts and parts[0] in {"body", "query", "path", "header"}:
        parts = parts[1:]
    parts = [part for before, part in pairwise(["", *parts]) if part not in MEMBERS.get(before, ())]
    return ".".join(part for part in parts if "[" not in part)[:200]


def from_http(error: HTTPException) -> SoupError | None:
    """A framework error as one of ours, None where no class of ours says the same (405)."""
    if error.status_code == 404:
        return errors.NotFound("There is nothing at this path.")
    if error.status_code == 400:
        return errors.InvalidParameter("The body could not be read.")
    return None


def _none(_: SoupError) -> dict[str, str]:
    """The headers of an error where a route has none of its own."""
    return {}


def install(app: FastAPI) -> None:
    """Register the handlers of this module on `app`. Unexpected errors are answered by `observe`."""

    async def ours(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, SoupError)
        return response_of(error, noticed(request, error))

    async def validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return response_of(from_validation(error.errors()))

    async def framework(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        known = from_http(error)
        if known is not None:
            return response_of(known, error.headers)
        code = NOT_ALLOWED if error.status_code == 405 else OTHER
        problem = Problem(message=f"{error.detail}.", type=error_type(error.status_code), param=None, code=code)
        return ProblemResponse(ErrorBody(error=problem), error.status_code, error.headers)

    app.add_exception_handler(SoupError, ours)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, framework)
