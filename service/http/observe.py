"""Request ids, counts and one JSON log line per request: the outermost ASGI layer around the app.

It logs nothing that clients sent: no path, query, header or body, only the route's template. Of an unexpected error it
logs the class and the lines of our code, but not the message, which may quote values. New fields and traces follow the
same rule: see docs/decisions/0010-private-text.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping

from opentelemetry.trace import get_current_span
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.errors import Internal, Unavailable
from service.http import problems
from service.http.metrics import Metrics
from service.observability.logs import request_id_now

log = logging.getLogger("service.request")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
BASIC_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of every answer that does not set them itself."""
STOPPING = "The server stops before it could answer, and it is not known how far it came. Ask again when it is back."


def request_id_of(headers: Headers) -> str:
    """Return the client's `x-request-id` if it is 1 to 64 of letters, digits, '.', '_', '-'; else a new one."""
    offered = headers.get("x-request-id", "")
    return offered if REQUEST_ID.fullmatch(offered) else uuid.uuid4().hex


def route_of(scope: Scope) -> str:
    """Return the template of the route that answered; never the path, whose names are private."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "unmatched"


class Observe:
    """ASGI layer that gives the request its id, answers unexpected errors with 500, counts and logs."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, traceparent: Callable[[], str | None] = lambda: None) -> None:
        self._app = app
        self._metrics = metrics
        self._traceparent = traceparent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request and record its answer; everything but HTTP is passed on untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id
        token = request_id_now.set(request_id)
        sender = _Sender(scope, send, {"x-request-id": request_id, "traceresponse": self._traceparent()})
        started = time.perf_counter()
        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, sender)
        except asyncio.CancelledError:  # the server stops, and its grace period is over
            if sender.status is not None:
                raise
            await problems.response_of(Unavailable(STOPPING))(scope, receive, sender)
        except Exception as error:
            body = problems.unexpected(error)
            if sender.status is not None:
                raise  # the answer has begun: only cutting the connection tells the client
            await problems.ProblemResponse(body, problems.STATUS[Internal])(scope, receive, sender)
        finally:
            self._metrics.in_flight.dec()
            self._record(scope, sender.status, time.perf_counter() - started)
            request_id_now.reset(token)

    def _record(self, scope: Scope, status: int | None, seconds: float) -> None:
        method, route = _method(scope), route_of(scope)
        label = "none" if status is None else str(status)
        self._metrics.requests.labels(method, route, label).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)
        if "error_code" in scope["state"]:
            self._metrics.errors.labels(scope["state"]["error_code"]).inc()
        if "over_limit" in scope["state"]:
            self._metrics.over_limit.labels(scope["state"]["over_limit"]).inc()
        principal = scope["state"].get("principal")
        fields = {
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 1),
            "key": getattr(principal, "key_id", None),
        }
        log.info("request", extra={"fields": fields})


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in problems.HTTP_METHODS else "OTHER"


def _trace(scope: Scope) -> None:
    """Add request id, key and error code to the request's span, which ends with the last byte."""
    state = scope["state"]
    key_id = getattr(state.get("principal"), "key_id", None)
    attributes = {"soup.request_id": state["request_id"], "soup.key": key_id, "error.type": state.get("error_code")}
    get_current_span().set_attributes({name: value for name, value in attributes.items() if value is not None})


class _Sender:
    """`send` that adds the given headers that are not None and BASIC_HEADERS, and stores the status."""

    def __init__(self, scope: Scope, send: Send, headers: Mapping[str, str | None]) -> None:
        self._scope = scope
        self._send = send
        self._headers = {name: value for name, value in headers.items() if value is not None}
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.update(self._headers)
            for name, value in BASIC_HEADERS.items():
                headers.setdefault(name, value)
        if not message.get("more_body"):  # also at the start: an answer that is cut off has no last message
            _trace(self._scope)
        await self._send(message)
