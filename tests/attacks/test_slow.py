"""Clients that send nothing, half of something, or drop by drop: cut off, told why, and nobody waits for them.

No test looks at a clock: each waits for the server to close the connection.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from service.http.requests import bodies
from tests.attacks.attack import Attack, Outcome, each
from tests.attacks.target import PATIENCE, Target, digest_of
from tests.service.servers import serving
from tests.service.sockets import read_until, until_closed

DATA = b"x" * 1000
Send = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def hasty(target: Target) -> Iterator[Target]:
    """The target on another port, where headers and bodies have the shortest time."""
    settings = target.world.runtime.settings.model_copy(update={"header_seconds": 0.3, "body_seconds": 0.3})
    with pytest.MonkeyPatch.context() as patch, serving(target.world.app, settings) as port:
        patch.setattr(target.world.app.state.bodies, "settings", settings)
        yield replace(target, port=port)


def slow(name: str, tries: str, sent: bytes, status: int, says: str, then: Send | None = None) -> Attack:
    """An attack that sends without an end, the admin's key for KEY; `status` 0 is a close without an answer."""

    def strike(target: Target) -> Outcome:
        with closing(socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE)) as connection:
            connection.sendall(sent.replace(b"KEY", target.world.admin.encode()))
            if then is not None:
                then(connection)
            reply = until_closed(connection)
        if not reply:
            return Outcome(0, "", "", "")
        last = reply[reply.rindex(b"HTTP/1.1 ") :]
        return Outcome.of(int(last.split()[1]), last.partition(b"\r\n\r\n")[2])

    return Attack(name, tries, status, "too_slow" if status else "", says, strike)


def drip(connection: socket.socket) -> None:
    """A byte at a time, until there is an answer."""
    while not select.select([connection], [], [], 0.02)[0]:
        connection.sendall(b"x")


def half_a_second_request(connection: socket.socket) -> None:
    """Wait for the answer to the first, and begin another."""
    assert connection.recv(65536)
    connection.sendall(b"GET /healthz HT")


PUT = f"PUT /v1/blobs/{digest_of(DATA)} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer KEY\r\n".encode()
POST = b"POST /v1/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer KEY\r\ncontent-type: application/json\r\n"
ATTACKS = (
    slow("silence", "Holds a connection and says nothing.", b"", 0, ""),
    slow(
        "half of the headers",
        "Holds a connection with half of a request.",
        b"GET /healthz HTTP/1.1\r\nx-half: ",
        408,
        "SOUP_HEADER_SECONDS",
    ),
    slow(
        "header that drips",
        "Sends a byte now and then, so that something always comes.",
        b"GET /healthz HTTP/1.1\r\nx-drip: ",
        408,
        "SOUP_HEADER_SECONDS",
        drip,
    ),
    slow(
        "half of a second request",
        "Is answered once, and then holds the connection with half of a request.",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
        408,
        "SOUP_HEADER_SECONDS",
        half_a_second_request,
    ),
    slow(
        "half of an upload",
        "Holds a thread and a file with half of a blob.",
        PUT + b"content-length: 1000\r\n\r\n" + DATA[:500],
        408,
        "SOUP_BODY_SECONDS",
    ),
    slow(
        "upload without its last chunk",
        "The same, without having said how much there is.",
        PUT + b"transfer-encoding: chunked\r\n\r\n1f4\r\n" + DATA[:500] + b"\r\n",
        408,
        "SOUP_BODY_SECONDS",
    ),
    slow(
        "half of a JSON body",
        "Holds memory with half of a body.",
        POST + b'content-length: 1000\r\n\r\n{"name": ',
        408,
        "SOUP_BODY_SECONDS",
    ),
)


@each(ATTACKS)
def test_it_is_cut_off(hasty: Target, attack: Attack) -> None:
    hasty.withstands(attack)


def test_a_key_that_is_revoked_while_its_body_arrives_makes_no_other(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Mock(return_value=0.0)
    monkeypatch.setattr(bodies, "time", SimpleNamespace(monotonic=clock))
    client, body = target.world.client, b'{"name": "lasting", "namespaces": null, "scopes": ["admin"]}'
    stolen = client.post("/v1/keys", content=body, headers={"content-type": "application/json"}).json()
    with closing(socket.create_connection(("127.0.0.1", target.port), timeout=PATIENCE)) as connection:
        head = POST + f"expect: 100-continue\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head.replace(b"KEY", stolen["secret"].encode()))
        read_until(connection, b"100 Continue\r\n\r\n")
        assert client.delete(f"/v1/keys/{stolen['id']}").status_code == 200
        clock.return_value = 2.0  # since the body is awaited
        connection.sendall(body)
        assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 401 ")
