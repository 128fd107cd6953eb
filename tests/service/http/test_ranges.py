"""Ranges answer with exactly the bytes that were asked for."""

from __future__ import annotations

import io

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from service.http import problems
from service.http.files.ranges import ranged, span_of
from tests.service.answers import refusal_with_code

DATA = bytes(range(256)) * 3
DIGEST = "sha256:" + "a" * 64


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    problems.install(app)

    @app.api_route("/file", methods=["GET", "HEAD"])
    def file(request: Request) -> Response:
        return ranged(request, digest=DIGEST, size=len(DATA), open=lambda: io.BytesIO(DATA), filename="x.bin")

    @app.get("/empty")
    def empty(request: Request) -> Response:
        return ranged(request, digest=DIGEST, size=0, open=lambda: io.BytesIO(b""))

    return TestClient(app)


def test_the_whole_file(client: TestClient) -> None:
    answer = client.get("/file")
    assert (answer.status_code, answer.content) == (200, DATA)
    headers = {
        "etag": f'"{DIGEST}"',
        "content-length": str(len(DATA)),
        "accept-ranges": "bytes",
        "content-disposition": 'attachment; filename="x.bin"',
    }
    assert {name: answer.headers[name] for name in headers} == headers


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=10-19", 10, 20), ("bytes=700-", 700, 768), ("bytes=-5", 763, 768)],
)
def test_one_range(client: TestClient, header: str, start: int, stop: int) -> None:
    answer = client.get("/file", headers={"range": header})
    assert (answer.status_code, answer.content) == (206, DATA[start:stop])
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(DATA)}"


@pytest.mark.parametrize("header", ["bytes=768-", "bytes=9999-10000", "bytes=-0"])
def test_a_range_beyond_the_end(client: TestClient, header: str) -> None:
    answer = client.get("/file", headers={"range": header})
    assert refusal_with_code(answer, 416, "http_error") == "The range holds none of the 768 bytes."
    assert answer.headers["content-range"] == "bytes */768"


@pytest.mark.parametrize("header", ["bytes=0-1,5-6", "lines=1-2", "bytes=", "bytes=-", "bytes=5-2", "bytes=a-b"])
def test_what_is_not_one_range_is_answered_in_full(client: TestClient, header: str) -> None:
    assert client.get("/file", headers={"range": header}).status_code == 200


def test_an_empty_file(client: TestClient) -> None:
    assert client.get("/empty").content == b""
    for span in ("bytes=0-", "bytes=-5"):
        assert client.get("/empty", headers={"range": span}).status_code == 416


def test_head_has_the_headers_and_no_body(client: TestClient) -> None:
    answer = client.head("/file", headers={"range": "bytes=0-1"})
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(DATA))


def test_what_is_known_is_not_sent_again(client: TestClient) -> None:
    for header in (f'"{DIGEST}"', f'W/"{DIGEST}"', f'"other", "{DIGEST}"', "*"):
        assert client.get("/file", headers={"if-none-match": header}).status_code == 304
    assert client.get("/file", headers={"if-none-match": '"other"'}).status_code == 200


def test_if_range(client: TestClient) -> None:
    same = {"range": "bytes=0-1", "if-range": f'"{DIGEST}"'}
    assert client.get("/file", headers=same).status_code == 206
    assert client.get("/file", headers={**same, "if-range": '"other"'}).status_code == 200


@given(st.integers(0, 50), st.none() | st.integers(0, 60), st.none() | st.integers(0, 60))
def test_a_span_is_inside_of_the_file(size: int, first: int | None, last: int | None) -> None:
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    span = span_of(header, size)
    if not isinstance(span, tuple):
        return
    start, stop = span
    assert 0 <= start < stop <= size
    if first is not None:
        assert start == first
        assert last is None or stop == min(last + 1, size)
    else:
        assert stop == size
