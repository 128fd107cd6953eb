"""Traces as OpenTelemetry spans, sent over OTLP/HTTP: the only module that imports its SDK (extra `otel`).

A request's span has children for each transaction and each request to the engine, with the time in the queue, until the
first token, and after it. A job has a trace of its own, which links to where it was asked for. The SDK reads the
standard OTEL_ variables for everything but the endpoint: service name, headers, sampler, batches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from registry.errors import Busy, Internal, SoupError, Unavailable
from service.engine.life import Life, watching
from service.traces import Told, Traces

log = logging.getLogger("soup.traces")

MOST = 128
"""Children of one span; of more only their number is told. A training of hours writes its progress twice a second."""
EXPORT_SECONDS = 5
FAILURES = (Busy, Unavailable, Internal)
W3C = TraceContextTextMapPropagator()


class _Open:
    """A span that is open, and how many children it has."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self.context = set_span_in_context(span, Context())
        self._lock = threading.Lock()
        self._children = 0

    def takes_child(self) -> bool:
        """Whether one more child is told of, which may be after its own end: the engine hears last of who went away."""
        with self._lock:
            self._children += 1
            return self.span.get_span_context().trace_flags.sampled and self._children <= MOST

    def end(self) -> None:
        """It is over."""
        with self._lock:
            left_out = self._children - MOST
        if left_out > 0:
            self.span.set_attribute("soup.spans_left_out", left_out)
        self.span.end()


_now: ContextVar[_Open | None] = ContextVar("open_span", default=None)


class OpenTelemetry(Traces):
    """Spans of `provider`, which is nobody else's: a global one would collect what other packages tell as well."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("adaptersoup")

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[None]:
        """A span of kind server. A `tracestate` is left behind: it holds whatever its sender likes."""
        parent = W3C.extract({"traceparent": headers.get("traceparent", "")}, Context())
        with self._open(method, SpanKind.SERVER, parent, {"http.request.method": method}):
            yield

    @contextmanager
    def job(self, kind: str, id: str, asked: str | None) -> Iterator[None]:
        """A span of kind consumer, in a trace of its own: several requests may wait for one job, and none."""
        asking = get_current_span(W3C.extract({} if asked is None else {"traceparent": asked}, Context()))
        links = [Link(asking.get_span_context())] if asking.get_span_context().is_valid else []
        about = {"soup.job": id, "soup.job.kind": kind}
        with self._open(f"job {kind}", SpanKind.CONSUMER, Context(), about, links):
            yield

    @contextmanager
    def transaction(self, mode: str) -> Iterator[Callable[[], None] | None]:
        """A span with the number of statements; none of them, since they hold names."""
        within = _now.get()
        if within is None or not within.takes_child():
            yield None
            return
        statements = 0

        def count() -> None:
            nonlocal statements
            statements += 1

        span = self._tracer.start_span(f"database {mode}", within.context, SpanKind.CLIENT)
        try:
            yield count
        except BaseException as error:
            _fail(span, error)
            raise
        finally:
            span.set_attribute("soup.statements", statements)
            span.end()

    def note(self, attributes: Mapping[str, Told], *, name: str | None = None, failed: bool = False) -> None:
        """Attributes of the span that is open."""
        within = _now.get()
        if within is None:
            return
        within.span.set_attributes(dict(attributes))
        if name is not None:
            within.span.update_name(name)
        if failed:
            within.span.set_status(StatusCode.ERROR)

    def here(self) -> str | None:
        """The span that is open."""
        within, found = _now.get(), dict[str, str]()
        if within is not None:
            W3C.inject(found, within.context)
        return found.get("traceparent")

    def close(self, seconds: float) -> None:
        """The SDK waits for a collector as long as it likes: so a thread of its own does, which may be left behind."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(seconds)

    @contextmanager
    def _open(
        self, name: str, kind: SpanKind, parent: Context, attributes: Mapping[str, Told], links: Sequence[Link] = ()
    ) -> Iterator[None]:
        within = _Open(self._tracer.start_span(name, parent, kind, dict(attributes), links))
        now, told = _now.set(within), watching.set(partial(self._lived, within))
        try:
            yield
        except BaseException as error:
            _fail(within.span, error)
            raise
        finally:
            watching.reset(told)
            _now.reset(now)
            within.end()

    def _lived(self, within: _Open, life: Life) -> None:
        """A request to the engine has ended. In the engine's thread."""
        if not within.takes_child():
            return
        behind = time.time_ns() - int(time.monotonic() * 1e9)
        about: dict[str, Told] = {
            "soup.base_model": life.base_id, "soup.end": life.end,
            "gen_ai.usage.input_tokens": life.read, "gen_ai.usage.output_tokens": life.written,
        }  # fmt: skip
        if life.adapter is not None:
            about["soup.adapter"] = life.adapter
        span = self._past("engine", within.context, (life.came, life.ended), behind, about)
        of = set_span_in_context(span, Context())
        self._past("engine queue", of, (life.came, life.began or life.ended), behind)
        if life.began is not None:
            reads = "engine read" if life.first is None else "engine prompt"
            self._past(reads, of, (life.began, life.first or life.ended), behind)
        if life.first is not None:
            self._past("engine generate", of, (life.first, life.ended), behind)

    def _past(
        self,
        name: str,
        parent: Context,
        times: tuple[float, float],
        behind: int,
        about: Mapping[str, Told] | None = None,
    ) -> Span:
        """A span from a moment to another, both monotonic; `behind` is how far that clock is behind the calendar's."""
        start, end = (behind + int(moment * 1e9) for moment in times)
        span = self._tracer.start_span(name, parent, attributes=dict(about or {}), start_time=start)
        span.end(end)
        return span


def _fail(span: Span, error: BaseException) -> None:
    """The kind of an error, never its message, which quotes what people sent. A client's mistake is no failure."""
    span.set_attribute("error.type", error.code if isinstance(error, SoupError) else type(error).__name__)
    if not isinstance(error, SoupError) or isinstance(error, FAILURES):
        span.set_status(StatusCode.ERROR)


def sending(endpoint: str) -> OpenTelemetry:
    """Traces that are sent to a collector at `endpoint`."""
    named = Resource({"service.name": "adaptersoup"})
    provider = TracerProvider(resource=named.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_SECONDS)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OpenTelemetry(provider)
