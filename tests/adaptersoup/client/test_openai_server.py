"""An examined server: what is read of its answers, and one sentence for whatever else it sends. Nothing hangs."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from adaptersoup.client.openai_server import MAX_BYTES, OpenAIServer
from registry.errors import InvalidParameter, Unavailable
from registry.spec import SERVER_TOKENS

TOP = {" the": -0.5, " a": -1.5}
LEGACY = {"logprobs": {"top_logprobs": [TOP]}}
CHAT = {"logprobs": {"content": [{"top_logprobs": [{"token": token, "logprob": TOP[token]} for token in TOP]}]}}


class Endless(httpx2.AsyncByteStream):
    """A body that begins and never ends."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()


class Flood(httpx2.AsyncByteStream):
    """A body without an end that never pauses."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield bytes(MAX_BYTES // 4)


def server(answer: Callable[[httpx2.Request], httpx2.Response], **options: Any) -> OpenAIServer:
    return OpenAIServer("http://gpu:8000/v1/", transport=httpx2.MockTransport(answer), **options)


def answering(*choices: object, status: int = 200, **body: Any) -> Callable[[httpx2.Request], httpx2.Response]:
    return lambda _request: httpx2.Response(status, json={"choices": list(choices), **body})


def test_it_is_asked_for_one_token_with_the_log_probabilities_that_every_server_has() -> None:
    answer = Mock(side_effect=answering(LEGACY, LEGACY))
    assert server(answer).next_tokens("law", ["x", "y"]) == (TOP, TOP)
    request = answer.call_args.args[0]
    assert str(request.url) == "http://gpu:8000/v1/completions"
    assert "authorization" not in request.headers
    assert json.loads(request.content) == {
        "model": "law",
        "prompt": ["x", "y"],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": SERVER_TOKENS,
    }


def test_its_own_key_is_sent() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["authorization"] == "Bearer theirs"
        return httpx2.Response(200, json={"data": [{"id": "law", "object": "model"}]})

    assert server(answer, key="theirs\n").models() == ["law"]
    with pytest.raises(InvalidParameter, match="a header cannot carry"):
        server(answer, key="theirs\nx-evil: 1")


def test_answers_are_ordered_by_index_and_may_have_the_form_of_chats() -> None:
    second = {"logprobs": {"top_logprobs": [{"b": -9999.0, "c": float("-inf"), "d": float("nan"), "e" * 300: -1.0}]}}
    text = json.dumps({"choices": [{"index": 1, **second}, {"index": 0, **CHAT}]})
    readings = server(lambda _: httpx2.Response(200, text=text)).next_tokens("law", ["x", "y"])
    assert readings == (TOP, {"b": -9999.0, "c": -10000.0, "d": -10000.0})


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda _: httpx2.Response(200, text="<html>"), "something else than OpenAI's API"),
        (lambda _: httpx2.Response(200, text="[" * 100_000), "something else than OpenAI's API"),
        (lambda _: httpx2.Response(200, json=[1]), "something else than OpenAI's API"),
        (lambda _: httpx2.Response(307, headers={"location": "http://other/"}), "with status 307"),
        (lambda _: httpx2.Response(404, text="no\n model"), "with status 404 (no model)"),
        (lambda _: httpx2.Response(200, stream=Flood()), f"more than {MAX_BYTES} bytes"),
        (lambda _: httpx2.Response(200, stream=Endless()), "did not finish answering"),
        (answering(), "gives 0 answers to 1 prompts of 'law'"),
        (answering(LEGACY, LEGACY), "gives 2 answers to 1 prompts"),
        (answering({"text": "x", "logprobs": None}), "gives no log-probabilities"),
        (answering({"logprobs": {"top_logprobs": [{"x": "y"}]}}), "something else than OpenAI's API"),
        (answering(7), "something else than OpenAI's API"),
    ],
)
def test_any_other_answer_is_one_sentence(answer: Callable[[httpx2.Request], httpx2.Response], sentence: str) -> None:
    with pytest.raises(Unavailable, match=rf"^The server http://gpu:8000 .*{re.escape(sentence)}"):
        server(answer, seconds=0.5).next_tokens("law", ["x"])


def test_who_does_not_answer_at_all_is_one_sentence() -> None:
    with pytest.raises(Unavailable, match=r"cannot be asked for GET /v1/models \(refused\)"):
        server(Mock(side_effect=httpx2.ConnectError("refused"))).models()
    with pytest.raises(Unavailable, match="lists no models: name them with --model"):
        server(lambda _: httpx2.Response(200, json={})).models()


@pytest.mark.parametrize(("host", "is_used"), [("127.0.0.1", False), ("gpu.invalid", True)])
def test_a_proxy_is_used_for_other_machines_only(host: str, is_used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "unknown://proxy.invalid")
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(Unavailable, match=r"cannot be asked for GET /v1/models \(") as raised:
        OpenAIServer(f"http://{host}:1").models()
    assert ("proxy" in raised.value.message) is is_used
