"""HAProxy, nginx and Envoy by the files of `deploy/`, before scripted servers: who gets what, and what passes."""

from __future__ import annotations

import hashlib
import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal

import httpx2
import pytest

from tests.service.proxies import INFERENCE, PROXIES, proxy

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("name", PROXIES, scope="module")]
MODELS = [f"acme/a{number}" for number in range(24)]
MIB = 1024 * 1024


class Server(ThreadingHTTPServer):
    """A server that answers with its port and the headers of the request, or does what its `mode` says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode: Literal["answers", "breaks off", "stops", "streams", "waits"] = "answers"
        self.paths: list[str] = []
        self.begun, self.released, self.gone = Event(), Event(), Event()
        self.connections: list[Any] = []
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, which `end` closes."""
        self.connections.append(request)
        super().finish_request(request, client_address)

    def handle_error(self, *_: Any) -> None:
        """A proxy that is killed breaks connections off."""

    def end(self) -> None:
        """Close every connection and take no more."""
        self.shutdown()
        self.server_close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: Server

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        if self.server.mode == "breaks off" and self.path != "/readyz":
            self.close_connection = True
            return
        self.answer(200, {"by": self.server.server_port, "headers": {k.lower(): v for k, v in self.headers.items()}})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.paths.append(self.path)
        if self.server.mode == "breaks off":
            self.close_connection = True
        elif self.server.mode == "stops":
            self.answer(503, {})
        elif self.server.mode in ("streams", "waits"):
            self.stream()
        else:
            self.do_GET()

    def do_PUT(self) -> None:
        digest, remaining = hashlib.sha256(), int(self.headers["content-length"])
        while remaining:
            piece = self.rfile.read(min(remaining, 65536))
            self.server.begun.set()
            digest.update(piece)
            remaining -= len(piece)
        self.answer(200, {"sha256": digest.hexdigest()})

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-soup-digest", "sha256:1")
        self.end_headers()
        self.wfile.write(body)

    def stream(self) -> None:
        """Send events, or nothing, until the test says so or the client goes away; then one event more."""
        if self.server.mode == "streams":
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
        try:
            while not self.server.released.wait(0.05):
                if self.server.mode == "streams":
                    self.chunk(b"data: 1\n\n")
                if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                    raise ConnectionResetError
        except OSError:
            self.server.gone.set()
            raise
        self.chunk(b"data: 2\n\n")
        self.chunk(b"")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class World:
    """Three servers, a proxy before them, and a client of it."""

    def __init__(self, stack: ExitStack, name: str, folder: Path) -> None:
        self.servers = [Server() for _ in range(3)]
        self.url = stack.enter_context(proxy(name, [server.server_port for server in self.servers], folder))
        self.client = stack.enter_context(httpx2.Client(base_url=self.url, timeout=30, trust_env=False))

    def ask(self, model: str, path: str = "/v1/completions", *, header: bool = True) -> httpx2.Response:
        """Send what the clients send."""
        headers = {"x-soup-model": model} if header else {}
        return self.client.post(path, json={"model": model, "prompt": "x"}, headers=headers)

    def served(self) -> dict[str, int]:
        """Who answers for each model; raises KeyError for a refusal."""
        return {model: self.ask(model).json()["by"] for model in MODELS}


@contextmanager
def opened(name: str, folder: Path) -> Iterator[World]:
    """A proxy before servers, all of which end afterwards."""
    with ExitStack() as stack:
        world = World(stack, name, folder)
        yield world
    for server in world.servers:
        server.end()


@pytest.fixture
def world(name: str, tmp_path: Path) -> Iterator[World]:
    with opened(name, tmp_path) as world:
        yield world


@pytest.fixture(scope="module")
def shared(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """For tests that leave the servers as they were."""
    with opened(name, tmp_path_factory.mktemp("proxy")) as world:
        yield world


def test_a_model_stays_on_its_server_and_models_spread(shared: World, name: str) -> None:
    served = shared.served()
    assert set(served.values()) == {server.server_port for server in shared.servers}
    assert shared.served() == served
    for path in INFERENCE:
        assert shared.ask(MODELS[0], path).json()["by"] == served[MODELS[0]]
    for spread in ("base/tiny", "tiny", "auto"):  # nothing has to be loaded
        assert len({shared.ask(spread).json()["by"] for _ in range(20)}) > 1
    if name.startswith("haproxy"):  # it looks into the body where there is no header
        assert {model: shared.ask(model, header=False).json()["by"] for model in MODELS} == served


def test_the_models_of_a_dead_server_move_and_no_others(world: World) -> None:
    served = world.served()
    dead = world.servers[0].server_port
    world.servers[0].end()
    after = world.served()
    assert dead not in after.values()
    assert {model: by for model, by in after.items() if served[model] != dead} == {
        model: by for model, by in served.items() if by != dead
    }


@pytest.mark.parametrize("mode", ["breaks off", "stops"])
def test_inference_goes_on_elsewhere_and_a_write_is_not_sent_twice(world: World, name: str, mode: Any) -> None:
    world.servers[0].mode = mode
    assert world.servers[0].server_port not in world.served().values()
    if mode == "breaks off":
        for server in world.servers:
            server.paths.clear()
        for _ in range(12):
            with suppress(httpx2.RemoteProtocolError):  # or 502: nobody knows what it did
                world.client.post("/v1/soups", json={})
        assert sum(len(server.paths) for server in world.servers) == 12
    if name != "envoy":
        assert {world.client.get("/v1/models").status_code for _ in range(12)} == {200}


def test_a_refusal_by_all_servers_leaves_them_in_use(world: World) -> None:
    """503 is also the answer to `auto` without a selector, for which any client can ask."""
    for mode, status in (("stops", 503), ("answers", 200)):
        for server in world.servers:
            server.mode = mode
        assert {world.ask("auto").status_code for _ in range(4)} == {status}


def test_each_event_passes_when_it_is_there(world: World) -> None:
    for server in world.servers:
        server.mode = "streams"
    with world.client.stream("POST", "/v1/completions", json={"model": "tiny"}) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "data: 1"
        for server in world.servers:
            server.released.set()
        assert [line for line in lines if line][-1] == "data: 2"


@pytest.mark.parametrize("mode", ["streams", "waits"])
def test_a_client_that_goes_away_ends_its_request_at_the_server(world: World, mode: Any) -> None:
    gone = Event()
    for server in world.servers:
        server.mode, server.gone = mode, gone
    with (
        suppress(httpx2.ReadTimeout),
        world.client.stream("POST", "/v1/completions", json={"model": "tiny"}, timeout=0.3) as answer,
    ):
        next(answer.iter_lines())
    assert gone.wait(20)


def test_a_large_upload_passes_as_it_comes(shared: World) -> None:
    begun, digest = Event(), hashlib.sha256()
    for server in shared.servers:
        server.begun = begun

    def body() -> Iterator[bytes]:
        for number in range(24):
            piece = bytes([number]) * MIB
            digest.update(piece)
            yield piece
            assert number or begun.wait(20), "nothing of it came before all was sent"

    answer = shared.client.put("/v1/blobs/x", content=body(), headers={"content-length": str(24 * MIB)})
    assert answer.json() == {"sha256": digest.hexdigest()}


def test_headers_pass_and_figures_do_not(shared: World) -> None:
    sent = {"authorization": "Bearer sk-soup-x", "x-request-id": "mine", "range": "bytes=0-3", "if-match": "a"}
    answer = shared.client.get("/v1/adapters/a/b", headers=sent)
    received = answer.json()["headers"]
    assert {name: received[name] for name in sent} == sent
    assert answer.headers["x-soup-digest"] == "sha256:1"
    assert {shared.client.get(path).status_code for path in ("/metrics", "/%6Detric%73")} == {403}
