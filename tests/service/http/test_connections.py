"""Clients that connect and send nothing, half of something, or very many of them: real sockets, a real server.

Nothing sleeps: a test waits for the server to close a socket, or for what it sends.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from service.http.connections import FEWEST, FILES_KEPT, FILES_PER_THREAD, most_connections
from service.http.routes import jobs
from service.settings import Settings
from tests.service.http.checked_app import checked_app
from tests.service.servers import Live, World, serving

SETTINGS = {"header_seconds": 0.3, "body_seconds": 0.3, "job_workers": 0}
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


def until_closed(one: socket.socket) -> bytes:
    """All that comes before the server closes; a reset is an end, too."""
    found = b""
    try:
        while piece := one.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def answer_of(one: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the next answer, by its length."""
    found = b""
    while b"\r\n\r\n" not in found:
        piece = one.recv(65536)
        assert piece, found
        found += piece
    head, _, body = found.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += one.recv(65536)
    return int(head.split()[1]), body


def look(port: int) -> int:
    """The status of a request of its own."""
    with closing(connect(port)) as one:
        one.sendall(b"GET /look HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return answer_of(one)[0]


# --- what never comes -----------------------------------------------------------------------------


def test_the_rest_of_a_body_that_was_refused_is_not_waited_for(port: int) -> None:
    with closing(connect(port)) as one:
        one.sendall(b"POST /small HTTP/1.1\r\nhost: x\r\nx-scopes: read\r\ncontent-length: 1000\r\n\r\n")
        assert answer_of(one)[0] == 403
        assert until_closed(one) == b""


def test_connections_are_kept_for_the_next_request(port: int) -> None:
    with closing(connect(port)) as one:
        for _ in range(3):
            one.sendall(b"GET /look HTTP/1.1\r\nhost: x\r\n\r\n")
            assert answer_of(one)[0] == 200
        one.sendall(b"GET /look HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        assert answer_of(one)[0] == 200


# --- a whole server -------------------------------------------------------------------------------


def test_a_long_answer_is_not_cut_off(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream goes on while another connection, which came later, runs out of its time."""
    monkeypatch.setattr(jobs, "KEEPALIVE_SECONDS", 0.05)
    job = queued(live.world)
    port = int(live.url.rpartition(":")[2])
    with closing(connect(port)) as stream, closing(connect(port)) as late:
        head = f"GET /v1/jobs/{job}/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {live.world.admin}\r\n\r\n"
        stream.sendall(head.encode())
        assert b"event: progress" in read_until(stream, b"event: progress")
        assert until_closed(late) == b""
        assert b"still running" in read_until(stream, b"still running")
        assert live.world.client.post(f"/v1/jobs/{job}/cancel").status_code == 200
        assert b"event: done" in read_until(stream, b"event: done")


def queued(world: World) -> str:
    """The id of a job that nobody runs."""
    pushed = world.push("acme/waits", sample={"texts": [f"passage number {number}" for number in range(30)]})
    return str(pushed["job"])


def read_until(one: socket.socket, text: bytes) -> bytes:
    found = b""
    while text not in found:
        piece = one.recv(65536)
        assert piece, found
        found += piece
    return found


# --- how many -------------------------------------------------------------------------------------


@pytest.fixture
def small() -> Iterator[int]:
    """A server of few connections, which waits for them as good as without end."""
    settings: dict[str, Any] = {"max_connections": FEWEST, "header_seconds": 3600, "body_seconds": 3600}
    with serving(checked_app(**settings), Settings(**settings)) as port:
        yield port


@pytest.mark.parametrize(
    "sent", [b"", b"GET /look HTTP/1.1\r\nhost: x\r\nx-half: ", b"GET /look HTTP/1.1\r\nhost: x\r\n\r\n"]
)
def test_beyond_the_most_connections_those_that_wait_the_longest_give_way(small: int, sent: bytes) -> None:
    """Silent ones, half requests, and those that are kept for a next one."""
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(connect(small))) for _ in range(4 * FEWEST)]
        for one in opened[-FEWEST:]:
            one.sendall(sent)
        assert look(small) == 200
        for one in opened[: 3 * FEWEST]:
            assert until_closed(one) == b""
        opened[-1].sendall(b"\r\n\r\nGET /look HTTP/1.1\r\nhost: x\r\n\r\n" if b"half" in sent else sent or GET)
        assert answer_of(opened[-1])[0] == 200


GET = b"GET /look HTTP/1.1\r\nhost: x\r\n\r\n"


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
