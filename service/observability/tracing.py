"""Traces over OTLP/HTTP of requests, statements, jobs and the engine: the only user of OpenTelemetry's SDK.

FastAPI and SQLAlchemy are traced by their instrumentation packages. Spans leave with the attributes of ALLOWED alone.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from opentelemetry.context import Context, get_current
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.instrumentation.sqlalchemy.engine import EngineTracer
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_HEADERS,
    OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_EXPORTER_OTLP_TRACES_HEADERS,
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator as W3C

from registry.errors import InvalidParameter
from service.engine.request import RequestTimeline, timeline_observer

TIMEOUT_SECONDS = 5
"""How long the collector may take to answer, unless a variable of OpenTelemetry says otherwise."""
HEADER = re.compile(r"[!#-'*+.0-9A-Z^-z|~-]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*")
"""A header in a variable, as OpenTelemetry's SDK reads it: the SDK logs any other, with its secret, and drops it."""
ALLOWED = {
    "db.system",
    "db.system.name",
    "error.type",
    "http.method",
    "http.request.method",
    "http.status_code",
    "http.response.status_code",
    "http.route",
    "soup.request_id",
    "soup.key",
    "soup.job",
    "soup.job.kind",
    "soup.job.outcome",
    "soup.base_model",
    "soup.adapter",
    "soup.end",
    "soup.queue_seconds",
    "soup.first_token_seconds",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
}


class AllowedExporter(OTLPSpanExporter):
    """Exports no path, query, statement, message or header, and no database span outside of a request or job."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans with their allowed attributes only."""
        return super().export([_allowed(span) for span in spans if span.parent or span.kind != SpanKind.CLIENT])


def _allowed(span: ReadableSpan) -> ReadableSpan:
    return ReadableSpan(
        span.name.partition(" ")[0] if span.kind == SpanKind.CLIENT else span.name,  # of a statement its first word
        _stateless(span.context),
        _stateless(span.parent),
        kind=span.kind,
        links=span.links,
        resource=span.resource,
        attributes={name: value for name, value in (span.attributes or {}).items() if name in ALLOWED},
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _check_headers() -> None:
    """Raise InvalidParameter, without the value, for a variable with a header that the SDK would drop."""
    for name in (OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_TRACES_HEADERS):
        headers = filter(None, map(str.strip, os.environ.get(name, "").split(",")))
        if not all(map(HEADER.fullmatch, headers)):
            raise InvalidParameter(
                f"{name} is no list of headers NAME=VALUE, separated by commas, with quotation marks, commas, "
                "semicolons and backslashes of a value written as %22, %2C, %3B and %5C.",
                param="otel_endpoint",
            )


def _stateless(context: SpanContext | None) -> SpanContext | None:
    return context and SpanContext(context.trace_id, context.span_id, context.is_remote, context.trace_flags)


class Tracing:
    """The traces of one server, with its own provider: other packages would send to the global one.

    Raises InvalidParameter if the SDK refuses one of its OTEL_ variables.
    """

    def __init__(self, endpoint: str) -> None:
        _check_headers()
        try:
            self.provider = self._provider(endpoint)
        except ValueError as error:
            raise InvalidParameter(
                f"OpenTelemetry refuses one of the OTEL_ variables: {str(error).rstrip('.')}.", param="otel_endpoint"
            ) from error
        self._tracer = self.provider.get_tracer("adaptersoup")

    @staticmethod
    def _provider(endpoint: str) -> TracerProvider:
        resource = Resource({"service.name": "adaptersoup"}).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        names = (OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT)
        timeout = None if any(os.environ.get(name) for name in names) else TIMEOUT_SECONDS
        exporter = AllowedExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=timeout)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return provider

    def instrument_app(self, app: Any) -> None:
        """Trace the requests of a FastAPI application."""
        FastAPIInstrumentor.instrument_app(
            app,
            self._watch_request,
            tracer_provider=self.provider,
            meter_provider=NoOpMeterProvider(),
            exclude_spans=["receive", "send"],
        )

    def _watch_request(self, *_: Any) -> None:
        timeline_observer.set(partial(self._record, get_current()))

    def instrument_database(self, engine: Any) -> None:
        """Trace the statements of an SQLAlchemy engine."""
        connections = NoOpMeter("").create_up_down_counter("connections")
        EngineTracer(self._tracer, engine, connections)  # type: ignore[no-untyped-call]

    def traceparent(self) -> str | None:
        """Return the current span as a W3C traceparent, or None."""
        carrier: dict[str, str] = {}
        W3C().inject(carrier)
        return carrier.get("traceparent")

    @contextmanager
    def job(self, kind: str, id: str, traceparent: str | None) -> Iterator[None]:
        """Open a span in a new trace, linked to the request that enqueued the job."""
        origin = get_current_span(W3C().extract({"traceparent": traceparent or ""}, Context())).get_span_context()
        attributes, links = {"soup.job": id, "soup.job.kind": kind}, [Link(origin)] if origin.is_valid else []
        with self._tracer.start_as_current_span(f"job {kind}", Context(), SpanKind.CONSUMER, attributes, links):
            timeline_observer.set(partial(self._record, get_current()))
            yield

    def _record(self, context: Context, timeline: RequestTimeline) -> None:
        """Record the span of an engine request that has ended."""
        clock_offset = time.time_ns() - time.monotonic_ns()
        values = {
            "soup.base_model": timeline.base_id,
            "soup.adapter": timeline.digest,
            "soup.end": timeline.status,
            "soup.queue_seconds": timeline.started_at and timeline.started_at - timeline.arrived_at,
            "soup.first_token_seconds": timeline.first_token_at and timeline.first_token_at - timeline.arrived_at,
            "gen_ai.usage.input_tokens": timeline.prompt_tokens,
            "gen_ai.usage.output_tokens": timeline.generated_tokens,
        }
        attributes = {name: value for name, value in values.items() if value is not None}
        span = self._tracer.start_span(
            "engine", context, attributes=attributes, start_time=clock_offset + int(timeline.arrived_at * 1e9)
        )
        span.end(clock_offset + int(timeline.ended_at * 1e9))

    def close(self, seconds: float) -> None:
        """Send the remaining spans within `seconds`; the SDK alone would wait longer."""
        closing = threading.Thread(target=self.provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(seconds)
