"""A client that leaves stops the engine's work; a client that finds the queue full learns when to come back."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import openai
import pytest

from service.engine import Ticket
from service.engine.runner import ForwardResult, ForwardTask, Runner
from service.http import connections, readiness
from service.settings import Settings
from tests.service.answers import answered
from tests.service.clock import Clock
from tests.service.cluster import until
from tests.service.servers import Live, World, serving


class GatedEngine:
    """An engine whose every pass but those of prompts waits for a permit, and the tickets it was given."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = world.runtime.engine
        self._permits = threading.Semaphore(0)
        self.start_too = False
        """Whether passes of prompts wait as well."""
        self.tickets: list[Ticket] = []
        self.submitted = threading.Event()
        run, submit_all = Runner.run, engine.submit_all

        def gated_run(runner: Runner, tasks: list[ForwardTask]) -> list[ForwardResult]:
            if self.start_too or any(task.start for task in tasks):
                assert self._permits.acquire(timeout=30)
            return run(runner, tasks)

        def remembered(requests: Any) -> list[Ticket]:
            tickets = submit_all(requests)
            self.tickets += tickets
            self.submitted.set()
            return tickets

        monkeypatch.setattr(Runner, "run", gated_run)
        monkeypatch.setattr(engine, "submit_all", remembered)

    def step(self, count: int = 1) -> None:
        self._permits.release(count)

    def open(self) -> None:
        self.step(10**6)


SETTINGS = {"engine_queue": 1, "ready_seconds": 0}


@pytest.fixture
def gated_engine(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedEngine]:
    engine = GatedEngine(world, monkeypatch)
    yield engine
    engine.open()
    for ticket in engine.tickets:
        ended(ticket).wait(30)
    # a cancelled ticket has ended before its place is free
    until(lambda: not world.runtime.engine.counters()["requests"])


def ended(ticket: Ticket) -> threading.Event:
    event = threading.Event()
    ticket.add_done_callback(lambda _: event.set())
    return event


def post(
    live: Live, body: dict[str, Any], path: str = "/v1/completions", *, secret: str | None = None
) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(urlsplit(live.url).netloc, timeout=30)
    headers = {**live.world.headers(secret or live.world.admin), "content-type": "application/json"}
    connection.request("POST", path, json.dumps({"model": "tiny", "temperature": 0, **body}), headers)
    return connection


def finish(connection: http.client.HTTPConnection) -> None:
    answer = connection.getresponse()
    assert answer.status == 200
    assert json.loads(answer.read())["choices"]
    connection.close()


def test_tokens_are_sent_as_they_come(live: Live, gated_engine: GatedEngine) -> None:
    stream = live.openai().completions.create(
        model="tiny", prompt="a b", max_tokens=5, temperature=0, logprobs=0, stream=True
    )
    chunks = iter(stream)
    first = next(chunks)  # the prompt's pass gives it; no further step was allowed
    assert first.choices[0].finish_reason is None
    assert not gated_engine.tickets[0].done()
    gated_engine.step()
    assert next(chunks).choices[0].finish_reason is None
    gated_engine.open()
    assert list(chunks)[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_its_generation(
    live: Live, gated_engine: GatedEngine, world: World, stream: bool
) -> None:
    """In the middle of a stream, and before its answer."""
    connection = post(live, {"prompt": "a b", "max_tokens": 50, "stream": stream, "logprobs": 0})
    assert gated_engine.submitted.wait(30)
    (ticket,) = gated_engine.tickets
    gone = ended(ticket)
    if stream:
        assert connection.getresponse().readline().startswith(b"data: {")
        assert world.runtime.engine.counters()["kv_bytes"] > 0
    connection.close()
    assert gone.wait(30)
    assert ticket.cancelled()
    assert memory_after(world, gated_engine) == 0


def memory_after(world: World, gated_engine: GatedEngine) -> float:
    """Bytes of keys and values once the pass that was running when the client left has ended."""
    gated_engine.step()
    until(lambda: not world.runtime.engine.counters()["requests"])
    return world.runtime.engine.counters()["kv_bytes"]


def test_a_full_queue_is_429_with_the_time_to_come_back(live: Live, gated_engine: GatedEngine) -> None:
    waiting = post(live, {"prompt": "a b", "max_tokens": 4})
    assert gated_engine.submitted.wait(30)
    for ask in ({"prompt": "a"}, {"prompt": "a", "stream": True}, {"prompt": ["a", "b"]}):
        with pytest.raises(openai.RateLimitError) as caught:
            live.openai().completions.create(model="tiny", max_tokens=1, **ask)  # type: ignore[call-overload]
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.code == "busy"
    for path, body in (("/v1/perplexity", {"texts": ["a b"]}), ("/v1/embeddings", {"input": "a"})):
        assert live.world.client.post(path, json={"model": "tiny", **body}).status_code == 429
    gated_engine.open()
    finish(waiting)


def test_a_full_queue_is_ready_while_the_engine_goes_on(
    live: Live, gated_engine: GatedEngine, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.client.get("/readyz").json() == {
        "status": "ready",
        "checks": {"database": "ok", "blobs": "ok", "base/tiny": "ok"},
    }
    waiting = []
    for secret in (world.admin, world.key(["infer"])):  # a second key still gets in, and then nobody
        gated_engine.submitted.clear()
        waiting.append(post(live, {"prompt": "a b", "max_tokens": 4}, secret=secret))
        assert gated_engine.submitted.wait(30)
    assert world.client.get("/healthz").json() == {"status": "ok"}
    assert answered(world.client.get("/readyz")) == {
        "status": "ready",
        "checks": {"database": "ok", "blobs": "ok", "base/tiny": "is busy"},
    }
    monkeypatch.setattr(readiness, "TOKEN_SECONDS", 0.0)  # as long as the pass that is held takes
    assert answered(world.client.get("/readyz"), 503) == {
        "status": "not_ready",
        "checks": {"database": "ok", "blobs": "ok", "base/tiny": "computes no token"},
    }
    monkeypatch.undo()
    gated_engine.open()
    for connection in waiting:
        finish(connection)
    assert world.client.get("/readyz").status_code == 200


@pytest.mark.parametrize(("since", "check"), [(29.0, "is busy"), (31.0, "computes no token")])
def test_a_probe_that_waits_too_long_is_no_fault_where_its_base_model_computes(
    world: World, monkeypatch: pytest.MonkeyPatch, since: float, check: str
) -> None:
    monkeypatch.setattr(Ticket, "result", Mock(side_effect=TimeoutError))
    monkeypatch.setattr(world.runtime.engine, "seconds_since_pass", lambda base_id: {"tiny": since}[base_id])
    assert world.client.get("/readyz").json()["checks"]["base/tiny"] == check


def test_readiness_is_looked_up_once_in_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, check = Clock(), Mock(return_value=readiness.Ready(status="ready", checks={}))
    monkeypatch.setattr(readiness, "_check", check)
    probe = readiness.Readiness(clock=clock)
    settings = world.runtime.settings.model_copy(update={"ready_seconds": 10.0})
    patient: Any = SimpleNamespace(engine=world.runtime.engine, settings=settings)
    for at in (100.0, 105.0, 109.9, 110.1, 115.0):
        clock.now = at
        assert probe.of(patient).status == "ready"
    assert check.call_count == 2


def test_an_engine_that_fails_is_not_ready(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "run", Mock(side_effect=RuntimeError("no")))
    assert world.client.get("/readyz").json()["checks"]["base/tiny"] == "computes no token"


def test_a_client_that_reads_nothing_stops_its_generation(world: World, gated_engine: GatedEngine) -> None:
    """Its connection is cut off once the server has waited for it for long, and the engine's rows are free."""
    with serving(world.app, Settings(answer_seconds=0.3), send_buffer=4096) as port, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        body = json.dumps(
            {
                "model": "tiny",
                "prompt": "a b",
                "n": 16,
                "max_tokens": 50,
                "logprobs": 5,
                "stream": True,
                "temperature": 0,
            }
        )
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {world.admin}\r\n"
        length = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        client.sendall((head + length + body).encode())
        assert gated_engine.submitted.wait(30)
        (ticket,) = gated_engine.tickets
        gone = ended(ticket)
        gated_engine.step(30)  # several times what waits for a client
        assert gone.wait(30)
        assert ticket.cancelled()
        memory_after(world, gated_engine)
        assert world.runtime.engine.counters()["generating_rows"] == 0


@pytest.mark.parametrize("body", [{"max_tokens": 9}, {"max_tokens": 9, "stream": True, "n": 2}])
def test_a_request_that_a_stop_cuts_off_is_told_so(
    world: World, gated_engine: GatedEngine, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    """In the shape of every other error. A stream that has begun is ended by its connection."""
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0)
    gated_engine.start_too = True
    with serving(world.app, world.runtime.settings) as port:
        connection = post(Live(world, f"http://127.0.0.1:{port}"), {"prompt": "a b", **body})
        assert gated_engine.submitted.wait(30)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert answer.headers["x-request-id"]
    error = json.loads(answer.read())["error"]
    assert (error["code"], error["type"]) == ("unavailable", "server_error")
    assert "The server stops before it could answer" in error["message"]
    connection.close()
