"""Prompts that are computed once: what the usage says of it, and between which keys it happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.service.servers import World, with_template

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"tiny": with_template(tiny_base_dir, tmp_path_factory.mktemp("reuse"), TEMPLATE)}


@pytest.fixture
def prompt(request: pytest.FixtureRequest) -> list[int]:
    """40 tokens that no other test sends."""
    return [1 + ord(letter) for letter in f"{request.node.name:_<40}"[-40:]]


def cached(world: World, prompt: Sequence[int], secret: str, **body: Any) -> int:
    asked = {"model": "tiny", "prompt": prompt, "max_tokens": 3, "temperature": 0, **body}
    answer = world.client.post("/v1/completions", json=asked, headers=world.headers(secret))
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_keys_of_the_same_namespaces_share_and_others_do_not(world: World, prompt: list[int]) -> None:
    one, same, more, other = (
        world.key(["infer"], namespaces) for namespaces in (["a", "b"], ["b", "a"], ["a", "b", "c"], ["a"])
    )
    asked = [cached(world, prompt, secret) for secret in (one, same, more, other, world.admin, other)]
    assert asked == [0, 39, 0, 0, 0, 39]


def test_several_prompts_are_counted_together(world: World, prompt: list[int]) -> None:
    cached(world, prompt, world.admin)
    assert cached(world, [prompt, [*prompt[:20], 7, 7, 7], [5, 6]], world.admin) == 39 + 20  # type: ignore[list-item]


def test_a_stream_says_it_with_its_usage(world: World, prompt: list[int]) -> None:
    cached(world, prompt, world.admin)
    body = {"model": "tiny", "prompt": prompt, "stream": True, "stream_options": {"include_usage": True}}
    answer = world.client.post("/v1/completions", json={**body, "max_tokens": 2})
    last = json.loads(answer.text.strip().split("\n\n")[-2].removeprefix("data: "))
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 39}


def test_a_conversation_goes_on_where_it_was(world: World) -> None:
    messages = [{"role": "user", "content": "What do you cook?"}]
    asked = {"model": "tiny", "max_tokens": 4, "temperature": 0}
    first = world.client.post("/v1/chat/completions", json={**asked, "messages": messages}).json()
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    messages += [{"role": "assistant", "content": "Soup."}, {"role": "user", "content": "Which?"}]
    whole = world.client.post("/v1/chat/completions", json={**asked, "messages": messages}).json()["usage"]
    assert 16 <= whole["prompt_tokens_details"]["cached_tokens"] < whole["prompt_tokens"]
    body = {**asked, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    answer = world.client.post("/v1/chat/completions", json=body)
    usage = json.loads(answer.text.strip().split("\n\n")[-2].removeprefix("data: "))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == whole["prompt_tokens"] - 1


def test_the_metrics_tell_what_is_kept(world: World, prompt: list[int]) -> None:
    cached(world, prompt, world.admin)
    cached(world, prompt, world.admin)
    found = dict(line.rsplit(" ", 1) for line in world.client.get("/metrics").text.splitlines() if line[0] != "#")
    assert float(found["soup_engine_prompt_tokens_reused_total"]) >= 39
    assert float(found["soup_engine_kept_texts"]) >= 1
    assert 0 < float(found["soup_engine_kept_bytes"]) <= float(found["soup_engine_kv_bytes"])
