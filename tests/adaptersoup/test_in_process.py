"""Requests to an application of this process: bodies go piece by piece, ends are heard, errors come through."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette

from adaptersoup.in_process import AppTransport
from registry.errors import Unavailable


class Said:
    """A small application, and what it saw."""

    def __init__(self) -> None:
        self.life: list[str] = []
        self.sent = 0
        self.scope: dict[str, Any] = {}
        self.gone = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                self.life.append((await receive())["type"])
                await send({"type": f"lifespan.{event}.complete"})
            return
        self.scope = scope
        await getattr(self, scope["path"].strip("/"))(receive, send)

    async def count(self, receive: Any, send: Any) -> None:
        sizes, more = [], True
        while more:
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-sizes", repr(sizes).encode())]})
        await send({"type": "http.response.body", "body": b""})

    async def pieces(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(100):
            await send({"type": "http.response.body", "body": b"%d," % number, "more_body": True})
            self.sent = number + 1
        await send({"type": "http.response.body", "body": b"end"})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone.set()

    async def silent(self, receive: Any, _send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone.set()

    async def fails(self, _receive: Any, _send: Any) -> None:
        raise ValueError("before")

    async def fails_late(self, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ValueError("after")


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def client(said: Said) -> Iterator[httpx2.Client]:
    transport = AppTransport(said)
    transport.start()
    with httpx2.Client(base_url="http://127.0.0.1", transport=transport) as client:
        yield client
    transport.close()


def test_a_body_goes_in_pieces_and_the_application_sees_the_request(client: httpx2.Client, said: Said) -> None:
    answer = client.put("/count?a=b%20c", content=iter([b"x" * 10, b"y" * 5]), headers={"X-Name": "Value"})
    assert (answer.status_code, answer.headers["x-sizes"]) == (201, "[10, 5, 0]")
    assert (said.scope["method"], said.scope["query_string"]) == ("PUT", b"a=b%20c")
    assert (b"x-name", b"Value") in said.scope["headers"]


def test_an_answer_is_made_no_faster_than_it_is_read(client: httpx2.Client, said: Said) -> None:
    with client.stream("GET", "/pieces") as answer:
        read = answer.iter_raw()
        assert next(read) == b"0,"
        assert said.sent <= 2
        assert b"".join(read).endswith(b",98,99,end")
    assert said.sent == 100
    assert said.gone.wait(30), "the connection is closed, as it would be"


def test_whoever_goes_away_is_heard_and_what_is_sent_then_is_lost(client: httpx2.Client, said: Said) -> None:
    with client.stream("GET", "/pieces") as answer:
        next(answer.iter_raw())
    assert said.gone.wait(30)
    assert said.sent == 100


def test_what_goes_wrong_comes_through(client: httpx2.Client) -> None:
    with pytest.raises(ValueError, match="before"):
        client.get("/fails")
    with pytest.raises(ValueError, match="after"):
        client.get("/fails_late")


def test_it_starts_and_ends_and_ends_again(said: Said) -> None:
    transport = AppTransport(said)
    transport.start()
    assert said.life == ["lifespan.startup"]
    transport.close()
    transport.close()
    assert said.life == ["lifespan.startup", "lifespan.shutdown"]


def test_whoever_is_interrupted_while_waiting_is_heard(client: httpx2.Client, said: Said) -> None:
    def broken_off(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, broken_off)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            client.get("/silent")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert said.gone.wait(30)


def test_an_end_is_heard_by_whoever_waits(said: Said) -> None:
    transport = AppTransport(said)
    transport.start()
    with httpx2.Client(base_url="http://127.0.0.1", transport=transport) as client:
        answer = client.send(client.build_request("GET", "/pieces"), stream=True)
        read = answer.iter_raw()
        assert next(read) == b"0,"
        transport.close()
        with pytest.raises(Unavailable, match="closed before"):
            list(read)
        answer.close()
        with pytest.raises(Unavailable, match="is closed"):
            client.get("/count")


@pytest.mark.parametrize("lifespan", ["raises", "ends"])
def test_an_application_that_ends_at_its_start_is_no_wait_without_end(lifespan: str) -> None:
    @asynccontextmanager
    async def raising(_app: Starlette) -> AsyncIterator[None]:
        raise OSError("no room")
        yield

    async def ending(_scope: Any, _receive: Any, _send: Any) -> None:
        return

    transport = AppTransport(Starlette(lifespan=raising) if lifespan == "raises" else ending)
    with pytest.raises(Unavailable):
        transport.start()
    transport.close()
    assert "soup-store" not in [thread.name for thread in threading.enumerate()]


def test_an_application_that_does_not_start_says_why() -> None:
    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no room"})

    transport = AppTransport(app)
    with pytest.raises(Unavailable, match="no room"):
        transport.start()
    transport.close()
