"""Over HTTP every request to the engine carries the key that sent it, so that keys can share the engine."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from registry.errors import Busy
from service.http.routes import adapters
from tests.service.servers import World, with_template

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
CALLS = {
    "/v1/completions": {"prompt": ["a b", "c"], "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 2},
    "/v1/perplexity": {"texts": ["a b c"]},
    "/v1/embeddings": {"input": "a b c"},
}


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"tiny": with_template(tiny_base_dir, tmp_path_factory.mktemp("share"), TEMPLATE)}


@pytest.mark.parametrize("path", CALLS)
def test_a_request_carries_its_key(world: World, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world.client.post("/v1/keys", json={"name": "one", "scopes": ["infer"], "namespaces": None}).json()
    submit, seen = world.runtime.engine.submit_all, []

    def noted(requests: Any) -> Any:
        seen.extend(requests)
        return submit(requests)

    monkeypatch.setattr(world.runtime.engine, "submit_all", noted)
    answer = world.client.post(path, json={"model": "tiny", **CALLS[path]}, headers=world.headers(made["secret"]))
    assert answer.status_code == 200, answer.text
    assert {request.owner for request in seen} == {made["id"]}


def test_a_full_queue_refuses_who_filled_it_and_says_when(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(requests: Any) -> Any:
        raise Busy("The engine holds 2 requests.", retry_after=17)

    monkeypatch.setattr(world.runtime.engine, "submit_all", full)
    answer = world.client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 1})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "17")


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
        asked = [pool.submit(world.client.get, "/v1/adapters/acme/slow", headers=headers) for _ in range(16)]
        assert all(entered.acquire(timeout=30) for _ in range(9))
        assert world.client.get("/v1/adapters").status_code == 200
        assert not entered.acquire(blocking=False)
        free.set()
        assert {one.result().status_code for one in asked} == {429}
