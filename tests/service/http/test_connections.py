"""Clients that connect and send nothing, half of something, or very many of them: real sockets, a real server.

Nothing sleeps: a test waits for the server to close a socket, or for what it sends.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest
from fastapi.responses import Response, StreamingResponse

from service.http.connections import BoundedConnection, ReadDeadline
from service.http.routes import jobs
from service.http.security.answer_limits import FEWEST, FILES_KEPT, FILES_PER_THREAD, most_connections
from service.settings import Settings
from tests.service.http.exchanges import checked_app
from tests.service.http.stock import queue_job
from tests.service.servers import Live, serving
from tests.service.sockets import read_until, until_closed

SETTINGS = {"header_seconds": 0.3, "body_seconds": 0.3, "job_workers": 0, "max_connections": FEWEST}
PATIENT = 60.0
"""Longer than any of these tests waits for."""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that waits for headers and bodies the shortest time."""
    settings = {"header_seconds": 0.3, "body_seconds": 0.3}
    with serving(checked_app(**settings), Settings(**settings)) as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENT)


def answer_of(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the next answer, by its length."""
    head, _, body = read_until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return int(head.split()[1]), body


def look(port: int) -> int:
    """The status of a request of its own."""
    with closing(connect(port)) as connection:
        connection.sendall(b"GET /look HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return answer_of(connection)[0]


# --- what never comes -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_rest_of_a_body_that_was_refused_is_not_waited_for(port: int) -> None:
    with closing(connect(port)) as connection:
        connection.sendall(b"POST /small HTTP/1.1\r\nhost: x\r\nx-scopes: read\r\ncontent-length: 1000\r\n\r\n")
        assert answer_of(connection)[0] == 403
        assert until_closed(connection) == b""


@pytest.mark.slow
def test_connections_are_kept_for_the_next_request(port: int) -> None:
    with closing(connect(port)) as connection:
        for _ in range(3):
            connection.sendall(b"GET /look HTTP/1.1\r\nhost: x\r\n\r\n")
            assert answer_of(connection)[0] == 200
        connection.sendall(b"GET /look HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        assert answer_of(connection)[0] == 200


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET /look HTTP/1.1\r\nno header\r\n\r\n", 400, "invalid"),
        (b"GET /look HTTP/1.1\r\nhost: x\r\n", 408, "too_slow"),
    ],
    ids=["malformed", "too slow"],
)
def test_what_never_becomes_a_request_gets_an_error_like_others(
    port: int, caplog: pytest.LogCaptureFixture, sent: bytes, status: int, code: str
) -> None:
    caplog.set_level("INFO", "service.request")
    with closing(connect(port)) as connection:
        connection.sendall(sent)
        head, _, body = until_closed(connection).decode().partition("\r\n\r\n")
    headers = dict(line.split(": ") for line in head.splitlines()[1:])
    assert (head.split()[1], json.loads(body)["error"]["code"]) == (str(status), code)
    assert headers["x-request-id"] in {getattr(record, "fields", {}).get("request_id") for record in caplog.records}


# --- answers that nobody takes --------------------------------------------------------------------


ANSWER = 4 * 2**20


@pytest.fixture(scope="module")
def large() -> Iterator[int]:
    """A server of large answers."""
    app = checked_app()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(ANSWER // 4096):
            yield b"x" * 4096

    @app.get("/pieces")
    async def in_pieces() -> StreamingResponse:
        return StreamingResponse(pieces())

    @app.get("/whole")
    async def at_once() -> Response:
        return Response(b"x" * ANSWER)

    with serving(app, Settings(answer_seconds=0.3), send_buffer=4096) as port:
        yield port


def test_a_malformed_body_behind_the_beginning_of_its_answer_ends_the_connection(
    large: int, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(slow(large)) as connection:
        connection.sendall(b"GET /pieces HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        read_until(connection, b"\r\n\r\n")
        connection.sendall(b"ZZ\r\n")
        with suppress(ConnectionResetError):
            until_closed(connection)
    assert "asyncio" not in {record.name for record in caplog.records}, "an error of the server"


def slow(port: int) -> socket.socket:
    """A connection with a small receive buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENT)
    connection.connect(("127.0.0.1", port))
    return connection


@pytest.mark.slow
@pytest.mark.parametrize("path", ["pieces", "whole"])
@pytest.mark.parametrize("more", ["", "connection: close\r\n"], ids=["kept", "closed"])
def test_who_takes_nothing_of_an_answer_is_cut_off(
    large: int, path: str, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the server has made all of it, and has closed the connection as far as it goes."""
    lost, connection_lost = threading.Event(), BoundedConnection.connection_lost

    def record_loss(protocol: BoundedConnection, exc: Exception | None) -> None:
        connection_lost(protocol, exc)
        lost.set()

    monkeypatch.setattr(BoundedConnection, "connection_lost", record_loss)
    with closing(slow(large)) as connection:
        connection.sendall(f"GET /{path} HTTP/1.1\r\nhost: x\r\n{more}\r\n".encode())
        assert lost.wait(PATIENT)
        assert len(until_closed(connection)) < ANSWER


@pytest.mark.parametrize(
    ("waiting", "cut"),
    [
        ((50_000, 33_616, 17_232, 848, 0), False),
        ((50_000, 33_617), True),
        ((1000, 0), False),
        ((1000, 1), True),
        ((0,), False),
    ],
    ids=["slow", "too slow", "all of little", "not all of little", "nothing waits"],
)
def test_who_takes_enough_each_time_is_not_cut_off(waiting: tuple[int, ...], cut: bool) -> None:
    """`waiting` has the unsent bytes at each look of the server; who took too few since the last one is cut off."""

    class Sized(asyncio.Transport):
        sizes = iter([buffer_size for size in waiting for buffer_size in (size, size)][1:])
        aborted = False

        def get_write_buffer_size(self) -> int:
            return next(self.sizes)

        def abort(self) -> None:
            self.aborted = True

    class Loop(asyncio.SelectorEventLoop):
        def call_later(self, delay: float, callback: Any, *args: Any, **named: Any) -> asyncio.TimerHandle:
            return super().call_later(0, callback, *args, **named)

    with closing(Loop()) as loop:
        transport = Sized()
        ReadDeadline(transport, 3600, loop).begin()
        for _ in range(2 * len(waiting)):
            loop.run_until_complete(asyncio.sleep(0))
    assert transport.aborted == cut


# --- a whole server -------------------------------------------------------------------------------


def test_a_long_answer_is_not_cut_off(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream goes on while another connection, which came later, runs out of its time."""
    monkeypatch.setattr(jobs, "KEEPALIVE_SECONDS", 0.05)
    job = queue_job(live.world)
    port = int(live.url.rpartition(":")[2])
    with closing(connect(port)) as stream, closing(connect(port)) as late:
        head = f"GET /v1/jobs/{job}/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {live.world.admin}\r\n\r\n"
        stream.sendall(head.encode())
        assert b"event: progress" in read_until(stream, b"event: progress")
        assert until_closed(late) == b""
        assert b"still running" in read_until(stream, b"still running")
        assert live.world.client.post(f"/v1/jobs/{job}/cancel").status_code == 200
        assert b"event: done" in read_until(stream, b"event: done")


def test_streams_of_one_key_leave_connections_to_others(live: Live) -> None:
    """Of sixteen a key has eight; what it asks for beyond them is refused, and another key is answered."""
    job, port = queue_job(live.world), int(live.url.rpartition(":")[2])
    first_key, second_key = (live.world.key(["read"]) for _ in range(2))

    def ask(stack: ExitStack, secret: str) -> socket.socket:
        connection = stack.enter_context(closing(connect(port)))
        head = f"GET /v1/jobs/{job}/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n\r\n"
        connection.sendall(head.encode())
        return connection

    with ExitStack() as stack:
        for _ in range(FEWEST // 2):
            read_until(ask(stack, first_key), b"event: progress")
        status, body = answer_of(ask(stack, first_key))
        assert (status, json.loads(body)["error"]["code"]) == (429, "busy")
        read_until(ask(stack, second_key), b"event: progress")


# --- how many -------------------------------------------------------------------------------------


@pytest.fixture
def small() -> Iterator[int]:
    """A server of few connections, which waits for them as good as without end."""
    settings: dict[str, Any] = {"max_connections": FEWEST, "header_seconds": 3600, "body_seconds": 3600}
    with serving(checked_app(**settings), Settings(**settings)) as port:
        yield port


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent", [b"", b"GET /look HTTP/1.1\r\nhost: x\r\nx-half: ", b"GET /look HTTP/1.1\r\nhost: x\r\n\r\n"]
)
def test_beyond_the_most_connections_those_that_wait_the_longest_give_way(small: int, sent: bytes) -> None:
    """Silent ones, half requests, and those that are kept for a next one."""
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(connect(small))) for _ in range(4 * FEWEST)]
        for connection in opened[-FEWEST:]:
            connection.sendall(sent)
        assert look(small) == 200
        for connection in opened[: 3 * FEWEST]:
            assert until_closed(connection) == b""
        opened[-1].sendall(b"\r\n\r\nGET /look HTTP/1.1\r\nhost: x\r\n\r\n" if b"half" in sent else sent or GET)
        assert answer_of(opened[-1])[0] == 200


GET = b"GET /look HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.slow
def test_half_bodies_give_way_where_nobody_else_can(small: int) -> None:
    head = b"PUT /raw HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1000\r\n\r\n"
    with ExitStack() as stack:
        opened = []
        for _ in range(FEWEST):
            opened.append(stack.enter_context(closing(connect(small))))
            opened[-1].sendall(head)
            read_until(opened[-1], b"100 Continue\r\n\r\n")
            opened[-1].sendall(b"half")
        assert look(small) == 200
        assert until_closed(opened[0]) == b""
        opened[-1].sendall(b"x" * 996)
        assert answer_of(opened[-1])[0] == 200


def test_connections_leave_the_process_files_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(max_connections=1000, database_pool=16)

    def most(files: int) -> int:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
        return most_connections(settings)

    assert most(resource.RLIM_INFINITY) == most(1_048_576) == 1000
    assert most(1024) == 1024 - FILES_KEPT - 16 * FILES_PER_THREAD
    assert most(256) == 256 - FILES_KEPT - 16 * FILES_PER_THREAD
    assert most(64) == FEWEST
    settings = Settings(max_connections=1)
    assert most(64) == most(1024) == 1
