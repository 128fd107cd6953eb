"""Large files go up in parts: on after whatever breaks them off, bounded, and never sent twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adaptersoup.client.client import SoupClient
from adaptersoup.client.uploading import LONGEST_PAUSE, TRIES
from registry.errors import Busy, Cancelled, DigestMismatch, Forbidden, Unavailable
from registry.names import sha256_digest
from tests.service.scripted_server import ok

DATA = bytes(range(250))
DIGEST = sha256_digest(DATA)


def refusal(status: int, code: str) -> httpx2.Response:
    return httpx2.Response(status, json={"error": {"message": "No.", "type": "t", "param": None, "code": code}})


class Store:
    """A server of uploads in memory; `failing` is called first and may answer instead, or raise."""

    def __init__(self, failing: Callable[[httpx2.Request], httpx2.Response | None] = lambda _: None) -> None:
        self.failing = failing
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, tuple[dict[str, Any], bytes]] = {}
        self.log: list[str] = []
        self.pauses: list[float] = []

    def client(self, *, part_bytes: int = 100) -> SoupClient:
        transport = httpx2.MockTransport(self)
        return SoupClient("http://soup.test", "k", transport=transport, pause=self.pauses.append, part_bytes=part_bytes)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.log.append(f"{request.method} {request.headers.get('content-range', '')}".strip())
        return self.failing(request) or self.answer(request)

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        path, digest = request.url.path, request.url.params.get("digest", "")
        id = path.rpartition("/")[2]
        if request.method == "HEAD":
            return httpx2.Response(200 if id in self.blobs else 404, headers={"etag": f'"{id}"'})
        if request.method == "POST":
            body = httpx2.Response(200, content=request.content).json()
            id = f"upload-{len(self.uploads)}"
            self.uploads[id] = (body, b"")
            return ok({"id": id, "offset": 0, **body}, 202)
        if path == "/v1/blobs/uploads":
            rows = [{"id": id, "offset": len(received), **body} for id, (body, received) in self.uploads.items()]
            return ok({"data": [row for row in rows if row["digest"] == digest]})
        if id not in self.uploads:
            return refusal(404, "not_found")
        if request.method == "DELETE":
            del self.uploads[id]
            return httpx2.Response(204)
        body, received = self.uploads[id]
        if request.method == "PUT":
            assert sha256_digest(received) == digest
            self.blobs[digest] = self.uploads.pop(id)[1]
            return ok({}, 201)
        match = re.fullmatch(r"(\d+)-(\d+)", request.headers["content-range"])
        assert len(request.content) == int(match[2]) + 1 - int(match[1])
        if int(match[1]) != len(received):
            return refusal(416, "wrong_offset")
        self.uploads[id] = (body, received + request.content)
        return ok({}, 202)


def once(number: int, answer: Callable[[httpx2.Request], httpx2.Response | None]) -> Any:
    """Fail the request of this number, from 0."""
    count = -1

    def failing(request: httpx2.Request) -> httpx2.Response | None:
        nonlocal count
        count += 1
        return answer(request) if count == number else None

    return failing


def broken(_: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadError("reset by peer")


@pytest.fixture(params=["bytes", "file"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> bytes | Path:
    if request.param == "bytes":
        return DATA
    (tmp_path / "weights").write_bytes(DATA)
    return tmp_path / "weights"


def test_parts_one_after_the_other(source: bytes | Path) -> None:
    server, steps = Store(), list[tuple[int, int, str]]()
    assert server.client().upload(source, progress=lambda *step: steps.append(step)) == DIGEST
    assert server.blobs == {DIGEST: DATA}
    assert server.log == ["HEAD", "GET", "POST", "PATCH 0-99", "PATCH 100-199", "PATCH 200-249", "PUT"]
    assert steps == [(done, 250, "" if source is DATA else "weights") for done in (0, 100, 200, 250)]
    assert server.client().upload(source) == DIGEST
    assert server.log[7:] == ["HEAD"]


def test_what_is_small_goes_in_one_request() -> None:
    server = Store(lambda request: ok({}, 201) if request.method == "PUT" else None)
    server.client(part_bytes=250).upload(DATA)
    assert server.log == ["HEAD", "PUT"]


@pytest.mark.parametrize("failure", [broken, lambda _: refusal(503, "unavailable"), lambda _: refusal(408, "too_slow")])
@pytest.mark.parametrize("number", range(1, 7))
def test_it_goes_on_after_what_passes(number: int, failure: Any, source: bytes | Path) -> None:
    """Whichever request fails, no part that was acknowledged is sent again."""
    server = Store(once(number, failure))
    server.client().upload(source)
    assert server.blobs == {DIGEST: DATA}
    sent = [line for line in server.log if line.startswith("PATCH")]
    assert (sorted(set(sent)), len(sent)) == (["PATCH 0-99", "PATCH 100-199", "PATCH 200-249"], 3 + (3 <= number <= 5))
    assert server.pauses == [0.5]


@pytest.mark.parametrize("number", [3, 5, 6])
def test_the_page_of_a_proxy_is_no_success(number: int) -> None:
    server = Store(once(number, lambda _: httpx2.Response(200, html="<html>maintenance</html>")))
    server.client().upload(DATA)
    assert server.blobs == {DIGEST: DATA}


@pytest.mark.parametrize("number", [3, 6])
def test_an_answer_that_is_lost(number: int) -> None:
    """The part is there, or the blob: the first is not sent again, and the second is no error."""
    server = Store()

    def lost(request: httpx2.Request) -> httpx2.Response:
        server.answer(request)
        raise httpx2.RemoteProtocolError("closed")

    server.failing = once(number, lost)
    server.client().upload(DATA)
    assert server.blobs == {DIGEST: DATA}
    assert sum(line == "PATCH 0-99" for line in server.log) == 1


def test_a_second_push_finds_what_a_killed_one_has_sent() -> None:
    def killed(*step: Any) -> None:
        if step[0] == 100:
            raise KeyboardInterrupt

    server = Store()
    with pytest.raises(KeyboardInterrupt):
        server.client().upload(DATA, progress=killed)
    server.log.clear()
    server.client().upload(DATA)
    assert server.log == ["HEAD", "GET", "PATCH 100-199", "PATCH 200-249", "PUT"]


def test_of_several_uploads_of_the_same_the_furthest_goes_on() -> None:
    server = Store()
    for number, received in enumerate((10, 130, 0)):
        server.uploads[f"upload-{number}"] = ({"digest": DIGEST, "size": 250}, DATA[:received])
    server.uploads["upload-9"] = ({"digest": DIGEST, "size": 7}, DATA[:5])
    server.client().upload(DATA)
    assert server.log[2:] == ["PATCH 130-229", "PATCH 230-249", "PUT"]


def test_an_upload_that_expired_meanwhile_begins_again() -> None:
    server = Store()

    def expire(_: httpx2.Request) -> None:
        server.uploads.clear()

    server.failing = once(4, expire)
    server.client().upload(DATA)
    assert server.blobs == {DIGEST: DATA}


def test_another_who_sends_the_same_may_finish_it() -> None:
    server = Store()

    def finished(_: httpx2.Request) -> None:
        server.uploads.clear()
        server.blobs[DIGEST] = DATA

    server.failing = once(4, finished)
    steps: list[int] = []
    server.client().upload(DATA, progress=lambda done, *_: steps.append(done))
    assert server.log[-2:] == ["PATCH 100-199", "HEAD"]
    assert steps[-1] == 250


def test_sent_anew_a_damaged_blob_is_replaced_although_a_request_breaks() -> None:
    """A server on an object store answers HEAD for a damaged blob: it has not read it."""
    server = Store(once(3, broken))
    server.blobs[DIGEST] = b"damaged"
    server.client().upload(DATA, anew=True)
    assert server.blobs == {DIGEST: DATA}


def test_it_gives_up_in_the_end() -> None:
    server = Store(lambda request: refusal(503, "unavailable") if request.method == "PATCH" else None)
    with pytest.raises(Unavailable, match="No"):
        server.client().upload(DATA)
    assert sum(line.startswith("PATCH") for line in server.log) == TRIES
    assert sum(server.pauses) < TRIES * LONGEST_PAUSE


def test_tries_begin_anew_with_every_part_that_arrives() -> None:
    """Twice as many failures as are borne in a row."""
    failures = {f"{start}-{start + 49}": TRIES // 2 for start in range(0, 250, 50)}

    def failing(request: httpx2.Request) -> httpx2.Response | None:
        span = request.headers.get("content-range", "")
        failures[span] = failures.get(span, 0) - 1
        return refusal(503, "unavailable") if failures[span] >= 0 else None

    server = Store(failing)
    server.client(part_bytes=50).upload(DATA)
    assert server.blobs == {DIGEST: DATA}


def test_a_full_quota_is_waited_for_and_then_told() -> None:
    with pytest.raises(Busy):
        Store(lambda request: refusal(429, "busy") if request.method == "PATCH" else None).client().upload(DATA)


@pytest.mark.parametrize(
    ("status", "code", "kind"), [(403, "forbidden", Forbidden), (400, "digest_mismatch", DigestMismatch)]
)
def test_what_does_not_pass_is_told_at_once(status: int, code: str, kind: type[Exception]) -> None:
    server = Store(lambda request: refusal(status, code) if request.method == "PATCH" else None)
    with pytest.raises(kind):
        server.client().upload(DATA)
    assert server.pauses == []


def test_who_watches_may_end_it_while_it_waits() -> None:
    server = Store(lambda request: refusal(503, "unavailable") if request.method == "PATCH" else None)

    def stopped(*_: Any) -> None:
        if server.pauses:
            raise Cancelled("Enough.")

    with pytest.raises(Cancelled):
        server.client().upload(DATA, progress=stopped)
    assert len(server.pauses) == 1


def test_a_file_that_becomes_shorter_is_no_endless_upload(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(DATA * 1000)

    def shrink(_: httpx2.Request) -> None:
        (tmp_path / "f").write_bytes(DATA * 100)

    with pytest.raises(DigestMismatch, match="became shorter"):
        Store(once(3, shrink)).client(part_bytes=25_000).upload(tmp_path / "f")
