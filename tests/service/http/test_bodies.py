"""Bodies that are refused before a route is reached: sent without permission, too large, with too many values, or such
that two parsers could read them differently."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from registry.errors import Busy, InvalidParameter
from service.http.app import ROUTES
from service.http.requests import bodies
from service.http.requests.bodies import CheckedRoute, TimedReceive, parse_json
from service.http.requests.body_limits import MAX_KEYS, SMALL, SMALL_BYTES, BodyMemory, limit_of
from service.http.thread_turns import LARGE_BODY
from tests.service.answers import refusal, refusal_with_code
from tests.service.http.exchanges import Exchange, checked_app

LIMIT = 2 * SMALL_BYTES
VALUES = 1000
SETTINGS: dict[str, Any] = {"max_json_bytes": LIMIT, "max_json_values": VALUES, "max_text_chars": 50_000}


@pytest.fixture
def client() -> TestClient:
    return TestClient(checked_app(**SETTINGS))


def post(client: TestClient, body: bytes, kind: str = "application/json", path: str = "/small") -> Any:
    return client.post(path, content=body, headers={"content-type": kind})


# --- before the body ------------------------------------------------------------------------------


def unread() -> Iterator[bytes]:
    raise AssertionError("the body was read")
    yield b""


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_bodies_that_no_route_reads_are_not_gathered(method: str) -> None:
    """Else whoever has no key could fill the memory through a health check."""
    answer = asyncio.run(Exchange(unread(), method=method, path="/look").of(checked_app()))
    assert answer.status == {"GET": 200, "HEAD": 405}[method]


def test_every_route_of_the_application_checks_its_body_like_this() -> None:
    routes = [route for module in ROUTES for route in module.router.routes]
    assert len(routes) > 30
    assert [route for route in routes if not isinstance(route, CheckedRoute)] == []


def test_only_calls_that_need_it_take_large_bodies() -> None:
    routes = [route for module in ROUTES for route in module.router.routes if isinstance(route, CheckedRoute)]
    large = {route.name for route in routes if limit_of(route.endpoint) is not SMALL}
    assert large == {
        "push_adapter",
        "cook_soup",
        "select_adapters",
        "perplexity",
        "embeddings",
        "completions",
        "chat_completions",
        "tokenize",
        "detokenize",
        "route",
    }


# --- what it holds --------------------------------------------------------------------------------


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
        (b'{"a": "\\ud800"}', "The body holds half of a surrogate pair, which is not valid text."),
        (b'{"\\udc00": 1}', "The body holds half of a surrogate pair, which is not valid text."),
        (b'{"a": "\xff"}', "The body is not valid UTF-8 at byte 7."),
        (b'{"a": 1e999}', "The body holds the number 1e999, which is too large."),
        (b"1" * 5000, "The body holds a number with thousands of digits, which is too long."),
    ],
)
def test_bad_json_is_refused_in_one_sentence(client: TestClient, body: bytes, sentence: str) -> None:
    assert refusal(post(client, body), 400) == sentence


@pytest.mark.parametrize("kind", ["application/json", "application/vnd.x+json", "Application/JSON; charset=utf-8"])
def test_every_spelling_of_json_is_checked(client: TestClient, kind: str) -> None:
    assert post(client, b'{"a": 1, "a": 2}', kind).status_code == 400
    assert post(client, b'{"a": 1}', kind).json() == {"a": 1}


@pytest.mark.parametrize("kind", ["text/plain", ""])
def test_what_is_not_json_is_refused(client: TestClient, kind: str) -> None:
    assert "application/json" in refusal(post(client, b'{"a": 1}', kind), 400)


def test_an_object_of_absurdly_many_keys_is_refused_before_they_are_compared() -> None:
    client = TestClient(checked_app())

    def body(keys: int) -> bytes:
        return json.dumps({"x": [{str(number): 0 for number in range(keys)}]}).encode()

    assert post(client, body(MAX_KEYS)).status_code == 200
    sentence = "The body holds an object with 1001 keys; the maximum is 1000."
    assert refusal(post(client, body(MAX_KEYS + 1)), 400) == sentence


@pytest.mark.parametrize("piece", [b"[],[],", b'"",', b'"', b"{}{}", b"1,", b",", b'\\",'])
def test_more_values_than_a_call_takes_are_refused_while_they_come(piece: bytes) -> None:
    """60 MiB of `[],[]` took 38 seconds and gigabytes to parse, before anybody looked at them."""
    pieces = iter([b"[", *([piece * (65536 // len(piece))] * 900)])
    exchange = asyncio.run(Exchange(pieces).of(checked_app(max_json_values=VALUES)))
    assert exchange.status == 413
    assert b"holds more than 1000 " in exchange.body
    assert b"SOUP_MAX_JSON_VALUES" in exchange.body
    assert exchange.read < 2 * 65536


@pytest.mark.parametrize(
    ("path", "numbers", "status"),
    [("/small", VALUES - 1, 200), ("/small", VALUES, 413), ("/ids", 50_000, 200), ("/ids", 60_000, 413)],
)
def test_a_call_takes_as_many_values_as_it_is_for_and_no_more(
    client: TestClient, path: str, numbers: int, status: int
) -> None:
    assert post(client, json.dumps([0] * numbers).encode(), path=path).status_code == status


def test_lists_and_objects_may_be_no_more_where_token_ids_may(client: TestClient) -> None:
    assert "1000 lists and objects" in refusal(post(client, json.dumps([[]] * VALUES).encode(), path="/ids"), 413)


def test_commas_and_brackets_inside_of_texts_are_no_values(client: TestClient) -> None:
    text = ',[{"\\' * 5000
    assert post(client, json.dumps(text).encode()).json() == text


def test_good_bodies_arrive_whole(client: TestClient) -> None:
    value = {"text": "\N{GRINNING FACE} \\ud83d", "list": [1, 2.5, None, True]}
    assert post(client, json.dumps(value).encode()).json() == value
    for kind in ("application/json", ""):
        assert refusal(post(client, b"", kind), 400) == "The request has no JSON body."


# --- how large ------------------------------------------------------------------------------------


def test_beyond_the_limit_is_413(client: TestClient) -> None:
    text = b'"' + b"x" * (LIMIT - 2) + b'"'
    assert post(client, text, path="/large").json() == LIMIT - 2
    sentence = refusal_with_code(post(client, text + b" ", path="/large"), 413, "too_large")
    assert f"larger than {LIMIT} bytes" in sentence
    assert "SOUP_MAX_JSON_BYTES" in sentence


def test_a_call_that_needs_little_takes_one_mebibyte(client: TestClient) -> None:
    assert "larger than 1048576 bytes" in refusal(post(client, b'"' + b"x" * SMALL_BYTES + b'"'), 413)


def test_blobs_pass_untouched(client: TestClient) -> None:
    answer = client.put("/raw", content=b"[" * (LIMIT + 1), headers={"content-type": "application/json"})
    assert sum(answer.json()["pieces"]) == LIMIT + 1


# --- all together ---------------------------------------------------------------------------------


def test_bytes_are_held_up_to_the_limit_and_half_of_it_by_one_key() -> None:
    memory = BodyMemory(100)
    first, second, third, fourth = (memory.account() for _ in range(4))
    first.take("a", 90)  # a body alone is the affair of its call
    with pytest.raises(Busy, match="hold 90 bytes of JSON; the maximum is 100"):
        second.take("b", 20)
    first.close()
    first.take("a", 30)
    second.take("a", 20)
    with pytest.raises(Busy):
        second.take("a", 1)
    third.take("b", 50)
    for account, key in ((fourth, "c"), (third, "b")):
        with pytest.raises(Busy):
            account.take(key, 1)
    for account in (first, second, third, fourth):
        account.close()
        account.close()
    assert memory.total == 0


@pytest.mark.anyio
async def test_what_a_request_holds_is_given_back_when_its_answer_is_done() -> None:
    app = checked_app(max_json_bytes_held=100_000)
    memory = app.state.bodies.memory

    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Exchange):
        async def receive(self) -> Message:
            if self.read:
                begun.set()
                await go_on.wait()
            return await super().receive()

    first = asyncio.ensure_future(Slow(iter([b'"' + b"x" * 60_000, b'"']), x_key="one").of(app))
    await begun.wait()
    assert memory.total == 60_001
    too_much = await Exchange(iter([b'"' + b"x" * 60_000, b'"']), x_key="two").of(app)
    assert (too_much.status, too_much.headers["retry-after"]) == (429, "2")
    assert b"SOUP_MAX_JSON_BYTES_HELD" in too_much.body
    go_on.set()
    assert (await first).status == 200
    assert memory.total == 0
    assert (await Exchange(iter([b'"' + b"x" * 60_000, b'"']), x_key="two").of(app)).status == 200
    assert memory.total == 0


@pytest.mark.anyio
async def test_a_body_is_parsed_once_and_a_large_one_not_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, loads, strict = [], Mock(wraps=json.loads), bodies.loads_strict

    def spied_strict(*args: Any, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return strict(*args, **options)

    monkeypatch.setattr(json, "loads", loads)
    monkeypatch.setattr(bodies, "loads_strict", spied_strict)

    assert (await Exchange(iter([b'{"a": 1}'])).of(checked_app())).status == 200
    assert (await Exchange(iter([b'"' + b"x" * LARGE_BODY + b'"'])).of(checked_app())).status == 200
    assert loads.call_count == 2
    assert [thread == threading.get_ident() for thread in threads] == [True, False]


# --- how fast -------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_slow_but_steady_is_taken_and_nothing_after_the_body_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    plain, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: plain() + passed[0])
    more_body = [True] * 5 + [False]

    async def receive() -> Message:
        passed[0] += 6.0 if more_body else 1000.0
        await asyncio.sleep(0)  # a deadline for all of the body would be over by now
        await asyncio.sleep(0)
        if not more_body:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": b"x", "more_body": more_body.pop(0)}

    timed = TimedReceive(receive, 10.0)
    for _ in range(6):
        assert (await timed())["body"] == b"x"
    assert (await timed())["type"] == "http.disconnect"


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
            assert parse_json(body) == value
        except InvalidParameter:
            with pytest.raises(UnicodeEncodeError):
                json.dumps(value, ensure_ascii=False).encode()
