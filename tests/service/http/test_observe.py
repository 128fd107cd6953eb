"""Operators see templates, ids and durations; never what people sent."""

from __future__ import annotations

import errno
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

from registry.errors import Internal
from service.engine.adapter_metrics import AdapterTotals
from service.http import problems
from service.http.metrics import Metrics
from service.http.observe import Observe
from service.observability.logs import JsonFormatter, configure_logging, describe

SECRET = "my-private-text"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def client(metrics: Metrics) -> TestClient:
    app = FastAPI()
    router = APIRouter(prefix="/v1")

    @router.get("/things/{name}")
    def echo(name: str) -> dict[str, str]:
        return {"name": name}

    @router.get("/broken/{name}")
    def broken(name: str) -> None:
        raise RuntimeError(f"cannot {name}")

    @router.get("/ours/{name}")
    def ours(name: str) -> None:
        try:
            raise OSError(errno.ENOSPC, f"no room for {name}")
        except OSError as error:
            raise Internal("The blob folder has no adapter 7.") from error

    @router.get("/half/{name}")
    def half(name: str) -> StreamingResponse:
        def body() -> Iterator[bytes]:
            yield b"begun"
            raise RuntimeError(f"cannot {name}")

        return StreamingResponse(body())

    app.include_router(router)
    problems.install(app)
    app.add_middleware(Observe, metrics=metrics)
    return TestClient(app)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("service")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel("INFO")
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)


def parsed(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_request_id_is_given_and_a_safe_one_is_kept(client: TestClient) -> None:
    first, second = (client.get("/v1/things/a").headers["x-request-id"] for _ in range(2))
    assert first != second
    assert client.get("/v1/things/a", headers={"x-request-id": "abc-1.2_Z"}).headers["x-request-id"] == "abc-1.2_Z"


@pytest.mark.parametrize("offered", ["", "a b", "a\tb", "x" * 65, '"}', "a;b", "é".encode()])
def test_an_unsafe_request_id_is_replaced(client: TestClient, offered: Any) -> None:
    request_id = client.get("/v1/things/a", headers={"x-request-id": offered}).headers["x-request-id"]
    assert len(request_id) == 32
    assert request_id.isalnum()


def test_the_log_holds_the_template_and_not_the_text(client: TestClient, lines: io.StringIO) -> None:
    client.get(f"/v1/things/{SECRET}?q={SECRET}", headers={"x-request-id": "r-1", "x-other": SECRET})
    (line,) = parsed(lines)
    assert SECRET not in lines.getvalue()
    assert line["route"] == "/v1/things/{name}"
    assert (line["status"], line["method"], line["request_id"]) == (200, "GET", "r-1")
    assert line["ms"] >= 0


def test_an_unexpected_error_is_500_in_our_shape_without_its_message(client: TestClient, lines: io.StringIO) -> None:
    answer = client.get(f"/v1/broken/{SECRET}", headers={"x-request-id": "r-2"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert (answer.headers["x-request-id"], answer.headers["x-content-type-options"]) == ("r-2", "nosniff")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert SECRET not in answer.text
    failed, request = parsed(lines)
    assert failed["error"] == "RuntimeError"
    assert any("test_observe" in place for place in failed["where"])
    assert request["status"] == 500
    assert SECRET not in lines.getvalue()


def test_the_log_has_the_details_of_an_internal_error_of_ours(client: TestClient, lines: io.StringIO) -> None:
    answer = client.get(f"/v1/ours/{SECRET}", headers={"x-request-id": "r-3"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, problems.INTERNAL_MESSAGE)
    failed, _request = parsed(lines)
    assert (failed["request_id"], failed["error"], failed["detail"]) == (
        "r-3",
        "Internal",
        "The blob folder has no adapter 7.",
    )
    assert (failed["cause"], failed["cause_errno"]) == ("OSError", "ENOSPC")
    assert any("test_observe" in place for place in failed["where"])
    assert SECRET not in lines.getvalue()


def test_a_failed_system_call_is_logged_by_its_number() -> None:
    assert describe(OSError(errno.EROFS, SECRET))["errno"] == "EROFS"
    assert describe(OSError(98765, SECRET))["errno"] == "98765"
    assert "errno" not in describe(OSError(SECRET))


def test_an_error_after_the_answer_began_cuts_the_connection(client: TestClient, lines: io.StringIO) -> None:
    with pytest.raises(RuntimeError):
        client.get(f"/v1/half/{SECRET}")
    assert [line.get("error") for line in parsed(lines)] == ["RuntimeError", None]
    assert SECRET not in lines.getvalue()


def test_metrics_count_by_template(client: TestClient, metrics: Metrics) -> None:
    for name in ("a", "b", SECRET):
        client.get(f"/v1/things/{name}")
    client.get(f"/{SECRET}")
    client.request("BREW", f"/v1/things/{SECRET}")
    client.get("/v1/broken/x")
    text = metrics.render().decode()
    for line in (
        'soup_http_requests_total{method="GET",route="/v1/things/{name}",status="200"} 3.0',
        'route="unmatched",status="404"',
        'method="OTHER"',
        'route="/v1/broken/{name}",status="500"',
        "soup_http_in_flight 0.0",
        "soup_http_request_seconds_bucket",
    ):
        assert line in text
    assert SECRET not in text


def test_the_engines_counters_are_read_when_asked(metrics: Metrics) -> None:
    totals = AdapterTotals(
        generated_tokens=7, scored_tokens=9, first_tokens=2, first_token_seconds=0.5, answers=3, seconds=4
    )
    metrics.watch_engine(
        lambda: {"queue_depth": 3, "tokens_total": 41}, lambda: {"base": totals, "sha256:ab": AdapterTotals()}
    )
    text = metrics.render().decode()
    for line in (
        "queue_depth 3.0",
        "tokens_total 41.0",
        'adapter_generated_tokens_total{adapter="base"} 7.0',
        'adapter_scored_tokens_total{adapter="base"} 9.0',
        'adapter_first_token_seconds_count{adapter="base"} 2.0',
        'adapter_first_token_seconds_sum{adapter="base"} 0.5',
        'adapter_answer_seconds_count{adapter="base"} 3.0',
        'adapter_answer_seconds_sum{adapter="base"} 4.0',
        'adapter_generated_tokens_total{adapter="sha256:ab"} 0.0',
    ):
        assert f"soup_engine_{line}" in text


def test_logging_is_json_also_for_others_exceptions() -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        configure_logging("info", stream)
        try:
            raise ValueError(SECRET) from KeyError(SECRET)
        except ValueError:
            logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
        assert logging.getLogger("uvicorn.access").disabled
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.getLogger("uvicorn.access").disabled = False
    (line,) = parsed(stream)
    assert (line["error"], line["cause"], line["level"]) == ("ValueError", "KeyError", "error")
    assert SECRET not in stream.getvalue()
