"""Traces: the spans of a request and of the job that it asks for, what they say, and what they never say."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adaptersoup.client.client import SoupClient
from registry.errors import InvalidParameter
from service.observability import tracing as tracing_module
from service.observability.tracing import Tracing
from service.settings import Settings
from tests.service.cluster import until
from tests.service.servers import Live, World, open_world, serving, write_bases

pytestmark = pytest.mark.slow
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
PROMPT = "zebra-secret-prompt"


class Collector:
    """An OTLP collector: every span that was sent, and whatever else came."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.bytes = b""

    def take(self, body: bytes) -> None:
        self.bytes += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.services |= {
                attribute.value.string_value
                for attribute in resource.resource.attributes
                if attribute.key == "service.name"
            }
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def below(self, span: Span) -> list[Span]:
        return sorted(
            (child for child in self.spans if child.parent_span_id == span.span_id),
            key=lambda child: child.start_time_unix_nano,
        )


def attributes(span: Span) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, str(attribute.value.WhichOneof("value")))
        for attribute in span.attributes
    }


@pytest.fixture(scope="module")
def collecting() -> Iterator[tuple[Collector, str]]:
    """A collector on loopback, and its address."""
    collector = Collector()

    async def take(request: Request) -> Response:
        body = await request.body()
        is_packed = request.headers.get("content-encoding") == "gzip"
        collector.take(gzip.decompress(body) if is_packed else body)
        return Response()

    with serving(Starlette(routes=[Route("/v1/traces", take, methods=["POST"])]), Settings()) as port:
        yield collector, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def world(
    collecting: tuple[Collector, str],
    served: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    database_settings: dict[str, Any],
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("traced")
    bases = write_bases(folder / "bases.toml", served)
    yield from open_world(folder / "data", bases, **database_settings, otel_endpoint=collecting[1])


def span_of(answer: httpx2.Response) -> str:
    """The id of the span of the request with this answer."""
    return answer.headers["traceresponse"].split("-")[2]


@pytest.fixture
def collected(collecting: tuple[Collector, str], world: World) -> Callable[..., Collector]:
    """Waits for the spans of requests and of a job, which end just after the answer and the job do."""
    collector = collecting[0]

    def sent(*answers: httpx2.Response, job: str | None = None) -> Collector:
        expected = {span_of(answer) for answer in answers} | ({job} if job else set())

        def arrived() -> bool:
            assert world.runtime.tracing.provider.force_flush()
            spans = {span.span_id.hex() for span in collector.spans}
            return expected <= spans | {attributes(span)["soup.job"] for span in collector.named("job cook")}

        until(arrived, "a span")
        return collector

    return sent


def ask(live: Live, method: str, path: str, *, key: str | None = None, **request: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key or live.world.admin}", **request.pop("headers", {})}
    return httpx2.request(method, live.url + path, headers=headers, timeout=60, **request)


def test_a_request_has_its_tree(live: Live, collected: Callable[..., Collector]) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "seed": 1}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "wanted-id"}
    answer = ask(live, "POST", "/v1/completions", json=body, headers=headers)
    collector = collected(answer)
    assert collector.services == {"adaptersoup"}
    (request,) = (span for span in collector.named("POST /v1/completions") if span.parent_span_id.hex() == PARENT)
    assert request.trace_id.hex() == TRACE
    assert answer.headers["traceresponse"] == f"00-{TRACE}-{request.span_id.hex()}-01"
    assert request.kind == Span.SPAN_KIND_SERVER
    usage, about = answer.json()["usage"], attributes(request)
    assert about["soup.key"].startswith("key-")
    assert about == {
        "http.method": "POST",
        "http.route": "/v1/completions",
        "http.status_code": 200,
        "soup.request_id": "wanted-id",
        "soup.key": about["soup.key"],
    }
    (select, *_) = (span for span in collector.below(request) if span.name == "SELECT")
    assert attributes(select)["db.system"] in {"sqlite", "postgresql"}
    (engine,) = (span for span in collector.below(request) if span.name == "engine")
    about = attributes(engine)
    queue, first = about["soup.queue_seconds"], about["soup.first_token_seconds"]
    assert about == {
        "soup.base_model": "tiny",
        "soup.end": "finished",
        "soup.queue_seconds": queue,
        "soup.first_token_seconds": first,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
    }
    assert 0 < queue < first < (engine.end_time_unix_nano - engine.start_time_unix_nano) / 1e9
    assert request.start_time_unix_nano <= engine.start_time_unix_nano


def test_a_stream_is_open_until_its_last_token(live: Live, collected: Callable[..., Collector]) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 3, "stream": True}
    answer = ask(live, "POST", "/v1/completions", json=body)
    assert "[DONE]" in answer.text
    collector = collected(answer)
    (request,) = (span for span in collector.spans if span.span_id.hex() == span_of(answer))
    (engine,) = (span for span in collector.below(request) if span.name == "engine")
    assert attributes(engine)["gen_ai.usage.output_tokens"] == 3
    assert not request.parent_span_id


def test_a_job_links_to_the_request_that_asked(
    live: Live, client: SoupClient, collected: Callable[..., Collector]
) -> None:
    """A cook by a recipe, whose soup is scored on a sample."""
    texts = [f"{PROMPT} number {number} of the passages." for number in range(20)]
    for seed, name in enumerate(("team/a", "team/b")):
        live.world.push(name, seed=seed)
    recipe = {"ingredients": [{"ref": "team/a"}, {"ref": "team/b"}]}
    body = {"name": "team/half", "recipe": recipe, "sample": {"texts": texts}, "wait": 0}
    begun = ask(live, "POST", "/v1/soups", json=body)
    client.wait_job(begun.json()["id"])
    collector = collected(begun, job=begun.json()["id"])
    trace_context = begun.headers["traceresponse"].split("-")
    (cook,) = (span for span in collector.named("job cook") if attributes(span)["soup.job"] == begun.json()["id"])
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in cook.links] == [(trace_context[1], trace_context[2])]
    assert cook.trace_id.hex() != trace_context[1]
    assert attributes(cook)["soup.job.outcome"] == "succeeded"
    assert {"engine", "UPDATE"} <= {span.name for span in collector.below(cook)}
    assert not any(span.name == "SELECT" and not span.parent_span_id for span in collector.spans), (
        "of no request and no job"
    )


def test_what_fails_says_its_kind_and_not_what_was_sent(live: Live, collected: Callable[..., Collector]) -> None:
    within = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "zebra=zebra"}
    unknown = ask(live, "GET", "/v1/adapters/team/zebra-secret-name?q=zebra-secret-query", headers=within)
    refused = ask(live, "GET", "/v1/models", key="sk-soup-" + "zebrasecret" * 3 + "0123456789")
    nowhere = ask(live, "GET", "/zebra-secret-path")
    assert [answer.status_code for answer in (unknown, refused, nowhere)] == [400, 401, 404]
    collector = collected(unknown, refused, nowhere)
    spans = {span.span_id.hex(): span for span in collector.spans}
    failed = [spans[span_of(answer)] for answer in (unknown, refused, nowhere)]
    assert [(span.name, attributes(span)["error.type"]) for span in failed] == [
        ("GET /v1/adapters/{ns}/{name}", "invalid_parameter"),
        ("GET /v1/models", "unauthenticated"),
        ("GET", "not_found"),
    ]
    assert {span.status.code for span in failed} == {Status.STATUS_CODE_UNSET}, "mistakes of clients, not the server's"
    for secret in (b"zebra", b"sk-soup-", b"SELECT ", b"FROM", b"soup.db", b"127.0.0.1"):
        assert secret not in collector.bytes, secret
    assert live.world.admin.encode() not in collector.bytes


@pytest.mark.parametrize(
    "traceparent",
    ["", "00-0-0-01", "00-" + "0" * 32 + "-" + PARENT + "-01", "ff-" + TRACE + "-" + PARENT + "-01", "x" * 5000],
)
def test_a_traceparent_that_is_none_begins_a_new_trace(live: Live, traceparent: str) -> None:
    answer = ask(live, "GET", "/healthz", headers={"traceparent": traceparent, "tracestate": "a=" + "b" * 600})
    assert answer.status_code == 200
    assert answer.headers["traceresponse"].split("-")[1] not in {TRACE, "0" * 32}


def test_what_was_recorded_of_an_exception_does_not_leave(collecting: tuple[Collector, str]) -> None:
    tracing = Tracing(collecting[1])
    with pytest.raises(ValueError), tracing.job("cook", "job-broken", "no traceparent"):
        trace.get_current_span().set_attribute("http.url", PROMPT)
        raise ValueError(PROMPT)
    tracing.close(5.0)
    (job,) = (span for span in collecting[0].named("job cook") if attributes(span)["soup.job"] == "job-broken")
    assert (job.status.code, job.status.message) == (Status.STATUS_CODE_ERROR, "")
    assert not job.events
    assert not job.links
    assert PROMPT.encode() not in collecting[0].bytes


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization: Bearer zebra", "no list of headers NAME=VALUE"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b,authorization=zebra;zebra", "no list of headers NAME=VALUE"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "5", r"less than or equal to max_queue_size\.$"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "x", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT must be"),
    ],
)
def test_a_wrong_variable_is_refused_without_its_secret(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidParameter, match=words) as refused:
        Tracing("http://127.0.0.1:9")
    assert "zebra" not in refused.value.message + caplog.text


def test_the_variables_of_opentelemetry_set_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    exporters = Mock()
    monkeypatch.setattr(tracing_module, "AllowedExporter", exporters)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer zebra, a=b%20c,")
    for name in ("", "OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"):
        monkeypatch.setenv(name or "UNUSED", "30")
        Tracing("http://127.0.0.1:9").close(5.0)
    assert [call.kwargs["timeout"] for call in exporters.mock_calls if "timeout" in call.kwargs] == [5, None, None]


def test_a_collector_that_is_gone_keeps_nobody(caplog: pytest.LogCaptureFixture) -> None:
    tracing = Tracing("http://127.0.0.1:9")
    with caplog.at_level(logging.CRITICAL):
        with tracing.job("cook", "job-1", None):
            assert tracing.traceparent() is not None
        tracing.close(0.1)
    assert tracing.traceparent() is None


def test_fastapis_own_telemetry_is_off(world: World) -> None:
    """It would tell paths and queries to whatever provider another package makes the global one."""
    telemetry = world.app._telemetry
    assert not any(telemetry[setting] for setting in ("tracing", "metrics", "logs", "auto_configure"))
    assert json.dumps(telemetry["exclude"]) == "null"
