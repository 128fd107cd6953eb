"""Errors as HTTP answers: the status code of each (400 to 503) and one body for all, OpenAI's.

The body is {"error": {"message", "type", "param", "code"}}, and `problems` if there are several. No other module knows
status codes of errors. Called by the app's exception handlers, and by the ASGI layers (auth, observe) and
`connections`, which answer before a route is reached. Nothing from the request is echoed beyond the messages of our own
errors, and nothing of an unexpected error is shown.
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
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from registry import errors
from registry.errors import SoupError
from registry.spec import UNION_MEMBERS
from registry.spec.wording import describe_error, members_of_union
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
"""Status by class of error; other classes have the status of their nearest ancestor."""

TOO_MUCH = frozenset({STATUS[errors.TooLarge], STATUS[errors.Busy]})
"""Statuses of requests that ask for too much."""
NOT_ALLOWED, OTHER = "method_not_allowed", "http_error"
"""Codes of errors of the framework that none of our classes stands for."""
CODES = frozenset({*errors.BY_CODE, NOT_ALLOWED, OTHER})
"""Every code that an answer can have."""

HTTP_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")

MOST_LISTED = 50
"""Problems of one request that are listed; the message says how many there are in all."""

MEMBERS = {**UNION_MEMBERS, "adapter": METHODS, "response_format": ("text", "json_object", "json_schema")}
"""Field of a request -> names of union members that pydantic adds after it in an error's location."""

ABSENT = frozenset({"missing", "union_tag_not_found"})
"""Types of pydantic errors for values that are missing."""

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
    """Return the HTTP status of one of our errors."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def error_type(status: int) -> str:
    """Return OpenAI's `type` for a status."""
    types = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return types.get(status, "server_error" if status >= 500 else "invalid_request_error")


def body_of(error: SoupError) -> ErrorBody:
    """Return one of our errors as its body, also for event streams; `problems` is unset if there is only one.

    The message of an Internal error goes to the log and not into the body.
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
    """Log an unexpected error and return a body that shows nothing of it."""
    log.error("request failed", exc_info=error)
    hidden = errors.Internal(INTERNAL_MESSAGE)
    return ErrorBody(
        error=Problem(message=hidden.message, type=error_type(status_of(hidden)), param=None, code=hidden.code)
    )


def _sendable(text: str) -> str:
    """Return `text` without halves of surrogate pairs, which a message may quote and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def response_of(error: SoupError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return one of our errors as a response with its status and headers."""
    return ProblemResponse(body_of(error), status_of(error), headers_of(error) | dict(headers or {}))


def headers_of(error: SoupError) -> dict[str, str]:
    """Return the headers that belong to one of our errors, whatever the request."""
    extra: dict[str, str] = {}
    if isinstance(error, errors.Busy | errors.Unavailable) and error.retry_after is not None:
        extra["retry-after"] = str(error.retry_after)
    if isinstance(error, errors.WrongOffset):
        extra |= offset_headers(error.offset)
    if isinstance(error, errors.Unauthenticated):
        extra["www-authenticate"] = "Bearer"
    if isinstance(error, errors.TooSlow):  # bytes that still arrive are not a request
        extra["connection"] = "close"
    return extra


def headers_for(request: Request, error: SoupError) -> dict[str, str]:
    """Return the headers of an error answer to a request; mark the request for `observe` if it is beyond a limit."""
    if isinstance(error, errors.RateLimitExceeded | errors.QuotaExceeded):
        request.state.over_limit = error.param
    rate_headers: dict[str, str] = getattr(request.state, "rate_headers", dict)()
    return headers_of(error) | rate_headers | getattr(request.state, "problem_headers", _no_headers)(error)


def offset_headers(offset: int) -> dict[str, str]:
    """Return the headers for an upload with `offset` received bytes: their number, and their Range if there are any."""
    return {"upload-offset": str(offset), **({"range": f"0-{offset - 1}"} if offset else {})}


class ProblemResponse(JSONResponse):
    """An error answer that stores its code in the state of the request, where `observe` counts it."""

    def __init__(self, body: ErrorBody, status: int, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(body.model_dump(exclude_unset=True), status_code=status, headers=headers)
        self._code = body.error.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Store the code and send the answer."""
        scope.setdefault("state", {})["error_code"] = self._code
        await super().__call__(scope, receive, send)


def from_validation(validation_errors: Sequence[Mapping[str, Any]]) -> SoupError:
    """Return pydantic's errors as one of ours: a sentence that names the field, and all sentences if several."""
    sentences = [_sentence(error) for error in validation_errors[:MOST_LISTED]]
    field = _location(validation_errors[0]) if validation_errors else ""
    is_method = field.endswith(("config.method", "config.structure")) and validation_errors[0]["type"] not in ABSENT
    message = sentences[0] if sentences else "The request is not valid."
    return (errors.UnknownMethod if is_method else errors.InvalidParameter)(
        message + errors.more_problems(len(validation_errors), stop="."),
        param=field or None,
        problems=sentences if len(sentences) > 1 else (),
    )


def _sentence(error: Mapping[str, Any]) -> str:
    """Return 'Field 'x.y': input should be ...' for one pydantic error, without the input itself."""
    field = _location(error)
    kind, message = str(error["type"]), describe_error(error)
    if kind == "json_invalid":
        return f"The body is not valid JSON: {error.get('ctx', {}).get('error', 'it cannot be read')}."
    if kind == "union_tag_not_found":
        names = members_of_union(error)
        return f"Field '{field}' is missing" + (f": set it to one of {names}." if names else ".")
    if kind in ABSENT:
        return f"Field '{field}' is missing." if field else "The request has no JSON body."
    if kind == "extra_forbidden":
        return f"Field '{field}' is not known here."
    if kind == "union_tag_invalid":
        context = error["ctx"]
        return f"Field '{field}': {str(context['tag'])[:80]!r} is none of {context['expected_tags']}."
    if not field and kind in {"model_attributes_type", "dict_type", "model_type"}:
        return "The body must be a JSON object sent with 'content-type: application/json'."
    if not field:
        return message[:1].upper() + message[1:] + "."
    return f"Field '{field}': {message[:1].lower() + message[1:]}."


def _location(error: Mapping[str, Any]) -> str:
    """Return the path of the field an error is about; for a discriminated union the discriminator."""
    kind, loc = str(error["type"]), list(error["loc"])
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        loc.append(str(error["ctx"]["discriminator"]).strip("'"))
    steps = [str(step) for step in loc]
    if steps and steps[0] in {"body", "query", "path", "header"}:
        steps = steps[1:]
    steps = [step for parent, step in pairwise(["", *steps]) if step not in MEMBERS.get(parent, ())]
    return ".".join(step for step in steps if "[" not in step)[:200]


def from_http(error: HTTPException) -> SoupError | None:
    """Return a framework error as one of ours, None if no class of ours stands for it (405)."""
    if error.status_code == 404:
        return errors.NotFound("There is nothing at this path.")
    if error.status_code == 400:
        return errors.InvalidParameter("The body could not be read.")
    return None


def _allowed_methods(request: Request) -> str:
    """Return the methods of all routes at the path of a request; the framework names those of the first one."""
    scopes = [{**request.scope, "method": method} for method in HTTP_METHODS]
    routes = request.app.routes
    return ", ".join(
        scope["method"] for scope in scopes if any(route.matches(scope)[0] is Match.FULL for route in routes)
    )


def _no_headers(_: SoupError) -> dict[str, str]:
    return {}


def install(app: FastAPI) -> None:
    """Register the exception handlers of this module on `app`; `observe` answers unexpected errors."""

    async def ours(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, SoupError)
        return response_of(error, headers_for(request, error))

    async def validation(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return response_of(from_validation(error.errors()))

    async def framework(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        soup_error = from_http(error)
        if soup_error is not None:
            return response_of(soup_error, error.headers)
        code = NOT_ALLOWED if error.status_code == 405 else OTHER
        problem = Problem(message=f"{error.detail}.", type=error_type(error.status_code), param=None, code=code)
        allowed = _allowed_methods(request) if error.status_code == 405 else ""
        headers = {"allow": allowed} if allowed else error.headers  # mounted files name their own
        return ProblemResponse(ErrorBody(error=problem), error.status_code, headers)

    app.add_exception_handler(SoupError, ours)
    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, framework)
