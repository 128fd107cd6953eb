"""Prometheus metrics, request ids and one JSON log line per request: the outermost ASGI layer around the app.

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
from collections.abc import Callable, Iterable, Iterator, Mapping

from opentelemetry.trace import get_current_span
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from registry.errors import Unavailable
from service.engine.adapter_metrics import AdapterTotals
from service.http import problems
from service.observability.logs import request_id_now

log = logging.getLogger("service.request")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
HTTP_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
BASIC_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers of every answer that does not set them itself."""
STOPPING = "The server stops before it could answer, and it is not known how far it came. Ask again when it is back."


# --- metrics --------------------------------------------------------------------------------------


class Metrics:
    """The metrics of one app, in its own registry so that two apps can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route")
        self.requests = Counter(
            "soup_http_requests", "Requests answered, by route template.", (*labels, "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "soup_http_request_seconds",
            "Time until the last byte of an answer.",
            labels,
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.over_limit = Counter(
            "soup_limit_refusals",
            "Requests refused for a limit of their key or namespace.",
            ("limit",),
            registry=self.registry,
        )
        self.errors = Counter(
            "soup_http_errors", "Requests answered with an error, by its code.", ("code",), registry=self.registry
        )
        for code in problems.CODES:  # from the start: what first appears at 1 has not increased, to Prometheus
            self.errors.labels(code)
        self.failures = Counter(
            "soup_metrics_failures", "Parts of the metrics that were left out.", ("part",), registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        self.in_flight = Gauge("soup_http_in_flight", "Requests being answered.", registry=self.registry)

    def watch(self, group: str, collect: Callable[[], Iterable[Metric]]) -> None:
        """Call `collect` whenever the metrics are rendered.

        If it fails, the group is omitted, counted and logged, and the other groups are rendered.
        """
        self.registry.register(_Group(group, collect, self.failures.labels(group)))

    def watch_engine(
        self, counters: Callable[[], Mapping[str, float]], by_adapter: Callable[[], Mapping[str, AdapterTotals]]
    ) -> None:
        """Read the engine's counters and its totals by adapter whenever the metrics are rendered."""
        self.watch("engine", lambda: _engine_metrics(counters()))
        self.watch("adapters", lambda: _adapter_metrics(by_adapter()))

    def render(self) -> bytes:
        """Return the metrics as Prometheus text."""
        return generate_latest(self.registry)


class _Group(Collector):
    """A group of metrics that may fail without the others."""

    def __init__(self, name: str, collect: Callable[[], Iterable[Metric]], failures: Counter) -> None:
        self._name = name
        self._collect = collect
        self._failures = failures

    def describe(self) -> Iterable[Metric]:
        """Return nothing: only `collect` knows the names, and it must not run before the server has started."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this group, none if collecting them fails."""
        try:
            return list(self._collect())
        except Exception:
            self._failures.inc()
            log.warning("the metrics lack %s", self._name, exc_info=True)
            return []


def _engine_metrics(counters: Mapping[str, float]) -> Iterator[Metric]:
    """Yield the engine's numbers by name: names ending in `_total` are counters, the others gauges."""
    for name, value in counters.items():
        label = f"Engine: {name.replace('_', ' ')}."
        if name.endswith("_total"):
            yield CounterMetricFamily(f"soup_engine_{name.removesuffix('_total')}", label, value=value)
        else:
            yield GaugeMetricFamily(f"soup_engine_{name}", label, value=value)


def _adapter_metrics(totals_by_adapter: Mapping[str, AdapterTotals]) -> Iterator[Metric]:
    """Yield the engine's totals by adapter: counters of tokens, and summaries of seconds."""
    name, labels = "soup_engine_adapter", ("adapter",)
    generated = CounterMetricFamily(f"{name}_generated_tokens", "Tokens generated, by adapter.", labels=labels)
    scored = CounterMetricFamily(f"{name}_scored_tokens", "Tokens scored or embedded, by adapter.", labels=labels)
    first = SummaryMetricFamily(
        f"{name}_first_token_seconds", "Time to the first token of a generation, by adapter.", labels=labels
    )
    answers = SummaryMetricFamily(
        f"{name}_answer_seconds", "Time to the whole answer of a request, by adapter.", labels=labels
    )
    for adapter, totals in totals_by_adapter.items():
        generated.add_metric((adapter,), totals.generated_tokens)
        scored.add_metric((adapter,), totals.scored_tokens)
        first.add_metric((adapter,), totals.first_tokens, totals.first_token_seconds)
        answers.add_metric((adapter,), totals.answers, totals.seconds)
    yield from (generated, scored, first, answers)


# --- the layer ------------------------------------------------------------------------------------


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
            await problems.response_of_unexpected(body)(scope, receive, sender)
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
    return scope["method"] if scope["method"] in HTTP_METHODS else "OTHER"


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
