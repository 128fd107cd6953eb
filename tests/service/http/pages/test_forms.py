"""Costs of a form before it is known to be one of ours: memory, what is read of it, connections."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from contextlib import ExitStack, closing
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from fastapi import Request

from registry.errors import Forbidden, InvalidParameter, SoupError, TooLarge
from service.http.pages import forms
from service.http.security.answer_limits import FEWEST
from tests.service.servers import Live, World
from tests.service.sockets import read_until

SETTINGS = {"job_workers": 0, "max_connections": FEWEST, "preload": False}
PATIENT = 60.0
KIND = "application/x-www-form-urlencoded"


# --- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [3, 4, 5, 7, forms.CHUNK_BYTES])
@pytest.mark.parametrize(
    "text",
    [
        *("", "a=", "a=b", "a=b=c", "a+b=c+d", "a=%2B%26%3d%25", "a=%", "a=%E", "a=1%2", "a=%zz%4", "%41=x", "=x"),
        urlencode({"sample": "Für 10 € \U0001f372 & mehr\r\n\r\n100%", "name": "acme/café"}),
    ],
)
def test_fields_are_read_as_the_library_reads_them(text: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a text is cut to be decoded; only CRLF becomes LF."""
    monkeypatch.setattr(forms, "CHUNK_BYTES", piece)
    assert forms._fields(bytearray(text.encode())) == dict(
        parse_qsl(text.replace("%0D%0A", "%0A"), keep_blank_values=True)
    )


@pytest.mark.parametrize("text", [b"a", b"a=1&", b"&a=1", b"a=1&a=2", b"a=1&%61=2", b"\xc3\xa9=1", b"a=%ff", b"%ff=a"])
def test_what_is_no_form_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidParameter):
        forms._fields(bytearray(text))
    fields = [b"f%d=" % number for number in range(forms.MAX_FIELDS + 1)]
    assert len(forms._fields(bytearray(b"&".join(fields[:-1])))) == forms.MAX_FIELDS
    with pytest.raises(InvalidParameter, match="more than 50 fields"):
        forms._fields(bytearray(b"&".join(fields)))


@pytest.mark.parametrize("character", ["%E2%82%AC", "a", "+%41", "%F0%9F%8D%B2"])
def test_a_form_takes_little_more_memory_than_its_bytes(character: str) -> None:
    body = bytearray(b"sample=" + character.encode() * (2**19 // len(character)))
    tracemalloc.start()
    try:
        fields = forms._fields(body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(fields["sample"]) > 2**15
    assert most < 2.5 * len(body)


# --- before it is read ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"origin": "https://evil.test"}, Forbidden),
        ({"sec-fetch-site": "same-site"}, Forbidden),
        ({"content-length": "4097"}, TooLarge),
        ({"content-type": "text/plain"}, InvalidParameter),
    ],
)
def test_what_the_headers_tell_is_refused_before_any_of_it_is_read(
    world: World, headers: dict[str, str], error: type[SoupError]
) -> None:
    async def receive() -> Any:
        pytest.fail("the form was read")

    sent = {"host": "soup.test", "content-type": KIND, **headers}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/sign-in",
        "app": world.app,
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "state": {"body_account": world.app.state.bodies.memory.account()},
    }
    with pytest.raises(error):
        asyncio.run(forms.read_form(Request(scope, receive), "", forms.SMALL))


# --- half of one ----------------------------------------------------------------------------------


def half(live: Live, stack: ExitStack) -> tuple[socket.socket, bytes]:
    """A connection with half a form to sign in, and what the server says to it first."""
    connection = stack.enter_context(closing(socket.create_connection(_place(live), timeout=PATIENT)))
    head = f"POST /sign-in HTTP/1.1\r\nhost: x\r\ncontent-type: {KIND}\r\ncontent-length: 99\r\nexpect: 100-continue"
    connection.sendall(f"{head}\r\n\r\n".encode())
    first_answer = connection.recv(65536)
    connection.sendall(b"key=")
    return connection, first_answer


def _place(live: Live) -> tuple[str, int]:
    return "127.0.0.1", int(live.url.rpartition(":")[2])


def test_strangers_with_half_a_form_have_the_places_of_one_key(live: Live) -> None:
    """Of sixteen connections eight; who sends what a key may send keeps its own meanwhile."""
    with ExitStack() as stack:
        upload = stack.enter_context(closing(socket.create_connection(_place(live), timeout=PATIENT)))
        body = json.dumps({"name": "reader", "scopes": ["read"], "namespaces": ["acme"]}).encode()
        upload.sendall(
            b"POST /v1/keys HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
            + f"authorization: Bearer {live.world.admin}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        )
        assert upload.recv(65536).startswith(b"HTTP/1.1 100")
        upload.sendall(body[:5])
        statuses = [half(live, stack)[1][9:12] for _ in range(FEWEST)]
        assert statuses == [b"100"] * (FEWEST // 2) + [b"429"] * (FEWEST // 2)
        upload.sendall(body[5:])
        assert upload.recv(65536).startswith(b"HTTP/1.1 201")


def test_half_a_form_of_a_stranger_has_an_end(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where something comes of it now and then."""
    monkeypatch.setattr(forms, "ANONYMOUS_SECONDS", 0.05)
    with ExitStack() as stack:
        connection, first_answer = half(live, stack)
        assert first_answer.startswith(b"HTTP/1.1 100")
        answer = read_until(connection, b"</html>")
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"The form did not come within 0.05 seconds." in answer
