"""What is refused before a route is reached: bodies that are too large, or that two parsers could read differently."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from registry.errors import InvalidParameter
from service.http.bodies import LARGE_JSON, MAX_KEYS, Bodies, check_json, is_json

LIMIT = 200_000


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()

    @app.api_route("/echo", methods=["POST", "GET", "DELETE"])
    async def echo(request: Request) -> Any:
        return {"size": len(await request.body())}

    @app.put("/v1/blobs/{digest}")
    async def blob(request: Request, digest: str) -> Any:
        return {"pieces": [len(piece) async for piece in request.stream()]}

    app.add_middleware(Bodies, limit=LIMIT)
    return TestClient(app)


def post(client: TestClient, body: bytes, kind: str = "application/json") -> Any:
    return client.post("/echo", content=body, headers={"content-type": kind})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"a": 1, "a": 2}', "The body has the key 'a' twice in one object."),
        (b'{"x": [{"b": {"a": 1, "a": 1}}]}', "The body has the key 'a' twice in one object."),
        (b'{"a": 1, "\\u0061": 2}', "The body has the key 'a' twice in one object."),
        (b'{"\\ud800": 1, "\\ud800": 2}', "The body has the key '\\ud800' twice in one object."),
        (b'{"a": NaN}', "The body holds NaN, which is not JSON."),
        (b'{"a": -Infinity}', "The body holds -Infinity, which is not JSON."),
        (b'{"a": }', "The body is broken at line 1, column 7: Expecting value."),
        (b'{"a": "\\ud800"}', "The body holds half of a surrogate pair, which is no text."),
        (b'{"\\udc00": 1}', "The body holds half of a surrogate pair, which is no text."),
        (b'{"a": "\xff"}', "The body is not valid UTF-8 at byte 7."),
        (b"[" * 100_000, "The body is nested too deeply."),
        (b'{"a": 1e999}', "The body holds the number 1e999, which is larger than any that can be kept."),
        (b"1" * 5000, "The body holds a number of thousands of digits, which cannot be read."),
    ],
)
def test_bad_json_is_refused_in_one_sentence(client: TestClient, body: bytes, sentence: str) -> None:
    answer = post(client, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == sentence


@pytest.mark.parametrize("kind", ["application/json", "application/vnd.x+json", "Application/JSON; charset=utf-8"])
def test_every_spelling_of_json_is_checked(client: TestClient, kind: str) -> None:
    assert is_json(kind)
    assert post(client, b'{"a": 1, "a": 2}', kind).status_code == 400


def test_an_object_of_absurdly_many_keys_is_refused_before_they_are_compared(client: TestClient) -> None:
    def body(keys: int) -> bytes:
        return json.dumps({"x": [{str(number): 0 for number in range(keys)}]}).encode()

    assert post(client, body(MAX_KEYS)).status_code == 200
    answer = post(client, body(MAX_KEYS + 1))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "The body holds an object with 1001 keys; at most 1000 are taken."


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_bodies_that_no_route_reads_are_not_gathered(method: str) -> None:
    """Else whoever has no key could fill the memory through a health check."""
    reached = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["method"])

    async def never(*_: object) -> Message:
        raise AssertionError("a body was read, or an answer sent")

    asyncio.run(
        Bodies(app, limit=1)({"type": "http", "method": method, "path": "/healthz", "headers": []}, never, never)
    )
    assert reached == [method]


def test_large_bodies_are_checked_too(client: TestClient) -> None:
    body = b'{"pad": "' + b"x" * LARGE_JSON + b'", "a": 1, "a": 2}'
    assert post(client, body).status_code == 400


def test_good_bodies_arrive_whole(client: TestClient) -> None:
    body = json.dumps({"text": "\N{GRINNING FACE} \\ud83d"}).encode()
    assert post(client, body).json() == {"size": len(body)}
    assert client.get("/echo").json() == {"size": 0}
    assert post(client, b"").json() == {"size": 0}


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_beyond_the_limit_is_413_whatever_the_type(client: TestClient, kind: str) -> None:
    assert post(client, b" " * LIMIT, kind).status_code in {200, 400}
    answer = post(client, b" " * (LIMIT + 1), kind)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "too_large"


def test_the_limit_holds_without_a_length(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(10):
            yield b" " * (LIMIT // 5)

    assert client.post("/echo", content=pieces()).status_code == 413


def test_blobs_pass_untouched(client: TestClient) -> None:
    answer = client.put("/v1/blobs/sha256:x", content=b" " * (LIMIT + 1), headers={"content-type": "application/json"})
    assert sum(answer.json()["pieces"]) == LIMIT + 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_whatever_json_writes_is_taken(value: Any) -> None:
    for ascii_only in (True, False):
        try:
            body = json.dumps(value, ensure_ascii=ascii_only).encode()
        except UnicodeEncodeError:
            continue
        try:
            check_json(body)
        except InvalidParameter:
            with pytest.raises(UnicodeEncodeError):
                json.dumps(value, ensure_ascii=False).encode()
