"""Names of a vLLM follow a real server: moved, retired, not loadable, unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adaptersoup.client.client import SoupClient
from adaptersoup.vllm.lora_cache import LoraCache
from adaptersoup.vllm.moved_names import follow_once
from registry.errors import Unavailable
from tests.service.lora_pushes import push_lora
from tests.service.servers import BASE_ID, Live


@dataclass
class Request:
    """A LoRARequest."""

    lora_name: str


@dataclass
class Models:
    """vLLM's models, which resolve names as the plugin does; `broken` digests do not load."""

    cache: LoraCache
    lora_requests: dict[str, Request] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    async def resolve_lora(self, lora_name: str) -> Request | None:
        self.asked.append(lora_name)
        lora = await asyncio.to_thread(self.cache.lora, lora_name)
        if lora is None:
            return None
        if lora.digest in self.broken:
            raise ValueError("The rank is too large.")
        return self.lora_requests.setdefault(lora_name, Request(lora.digest))

    def digests(self) -> dict[str, str]:
        return {name: request.lora_name for name, request in self.lora_requests.items()}


@pytest.fixture(scope="module")
def digests(live: Live) -> list[str]:
    """The digests of acme/law's two versions."""
    return [push_lora(live.world, "acme/law", seed=seed)["digest"] for seed in (1, 2)]


@pytest.fixture
def models(live: Live, digests: list[str], tmp_path: Path) -> Iterator[Models]:
    with SoupClient(live.url, live.world.admin) as client:
        client.put_alias("acme/law", "prod", 1)
        models = Models(LoraCache(client, tmp_path, base_model=BASE_ID))
        for name in ("acme/law@prod", "acme/law@1", digests[0]):
            asyncio.run(models.resolve_lora(name))
        models.asked.clear()
        yield models


def test_a_moved_alias_gets_the_other_adapter(live: Live, models: Models, digests: list[str]) -> None:
    asyncio.run(follow_once(models, models.cache))
    assert models.asked == []
    live.world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 2})
    asyncio.run(follow_once(models, models.cache))
    old, new = digests
    assert models.digests() == {"acme/law@prod": new, "acme/law@1": old, old: old, new: new}
    assert models.lora_requests["acme/law@prod"] is models.lora_requests[new]
    live.world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 1})
    asyncio.run(follow_once(models, models.cache))
    assert models.digests()["acme/law@prod"] == old


def test_an_alias_that_is_gone_is_forgotten(live: Live, models: Models, digests: list[str]) -> None:
    live.world.client.delete("/v1/adapters/acme/law/aliases/prod")
    asyncio.run(follow_once(models, models.cache))
    assert models.digests() == {"acme/law@1": digests[0], digests[0]: digests[0]}


def test_an_alias_of_what_does_not_load_is_forgotten_too(live: Live, models: Models, digests: list[str]) -> None:
    models.broken.add(digests[1])
    live.world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 2})
    asyncio.run(follow_once(models, models.cache))
    assert models.digests() == {"acme/law@1": digests[0], digests[0]: digests[0]}


def test_names_stay_while_the_server_does_not_answer(models: Models, digests: list[str], tmp_path: Path) -> None:
    before = models.digests()
    with SoupClient("http://127.0.0.1:9", "sk-soup-x", pause=lambda _: None) as client, pytest.raises(Unavailable):
        asyncio.run(follow_once(models, LoraCache(client, tmp_path, base_model=BASE_ID)))
    assert models.digests() == before


def test_loras_that_are_not_of_the_server_are_left_alone(models: Models) -> None:
    models.lora_requests = {"mine": Request("mine")}
    asyncio.run(follow_once(models, models.cache))
    assert models.digests() == {"mine": "mine"}
