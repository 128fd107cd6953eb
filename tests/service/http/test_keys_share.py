"""Keys share the engine: each request carries its key, none takes all, and prompts are computed once between some."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from registry.errors import Busy
from service.http.routes import adapters
from tests.service.answers import answered
from tests.service.http.stock import TEMPLATE
from tests.service.servers import World

TEMPLATES = {"tiny": TEMPLATE}
CALLS = {
    "/v1/completions": {"prompt": ["a b", "c"], "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 2},
    "/v1/perplexity": {"texts": ["a b c"]},
    "/v1/embeddings": {"input": "a b c"},
}


@pytest.mark.parametrize("path", CALLS)
def test_a_request_carries_its_key(world: World, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = world.client.post("/v1/keys", json={"name": "one", "scopes": ["infer"], "namespaces": None}).json()
    submit_all = Mock(wraps=world.runtime.engine.submit_all)
    monkeypatch.setattr(world.runtime.engine, "submit_all", submit_all)
    answered(world.client.post(path, json={"model": "tiny", **CALLS[path]}, headers=world.headers(key["secret"])))
    assert {request.owner for call in submit_all.call_args_list for request in call.args[0]} == {key["id"]}


def test_a_key_whose_requests_take_long_leaves_threads_to_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of sixteen threads are one key's at most: another key is answered while all of its requests wait."""
    entered, free = threading.Semaphore(0), threading.Event()

    def slow(*_: Any) -> Any:
        entered.release()
        assert free.wait(30)
        raise Busy("It was slow.")

    monkeypatch.setattr(adapters, "adapter_named", slow)
    headers = world.headers(world.key(["read"]))
    with ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(world.client.get, "/v1/adapters/acme/slow", headers=headers) for _ in range(16)]
        assert all(entered.acquire(timeout=30) for _ in range(9))
        assert world.client.get("/v1/adapters").status_code == 200
        assert not entered.acquire(blocking=False)
        free.set()
        assert {future.result().status_code for future in futures} == {429}


@pytest.fixture
def prompt(request: pytest.FixtureRequest) -> list[int]:
    """40 tokens that no other test sends."""
    return [1 + ord(letter) for letter in f"{request.node.name:_<40}"[-40:]]


def cached(world: World, prompt: Sequence[int], secret: str, **body: Any) -> int:
    request = {"model": "tiny", "prompt": prompt, "max_tokens": 3, "temperature": 0, **body}
    usage = answered(world.client.post("/v1/completions", json=request, headers=world.headers(secret)))["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_keys_of_the_same_namespaces_share_and_others_do_not(world: World, prompt: list[int]) -> None:
    key, same, wider, narrower = (
        world.key(["infer"], namespaces) for namespaces in (["a", "b"], ["b", "a"], ["a", "b", "c"], ["a"])
    )
    counts = [cached(world, prompt, secret) for secret in (key, same, wider, narrower, world.admin, narrower)]
    assert counts == [0, 39, 0, 0, 0, 39]


def test_several_prompts_are_counted_together(world: World, prompt: list[int]) -> None:
    cached(world, prompt, world.admin)
    assert cached(world, [prompt, [*prompt[:20], 7, 7, 7], [5, 6]], world.admin) == 39 + 20  # type: ignore[list-item]


def test_a_stream_says_it_with_its_usage(world: World, prompt: list[int]) -> None:
    cached(world, prompt, world.admin)
    body = {"model": "tiny", "prompt": prompt, "stream": True, "stream_options": {"include_usage": True}}
    answer = world.client.post("/v1/completions", json={**body, "max_tokens": 2})
    last = json.loads(answer.text.strip().split("\n\n")[-2].removeprefix("data: "))
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 39}


def test_the_metrics_tell_what_is_kept(world: World, prompt: list[int]) -> None:
    cached(world, prompt, world.admin)
    cached(world, prompt, world.admin)
    metrics = dict(line.rsplit(" ", 1) for line in world.client.get("/metrics").text.splitlines() if line[0] != "#")
    assert float(metrics["soup_engine_prompt_tokens_reused_total"]) >= 39
    assert float(metrics["soup_engine_kept_texts"]) >= 1
    assert 0 < float(metrics["soup_engine_kept_bytes"]) <= float(metrics["soup_engine_kv_bytes"])
