"""Names of a vLLM follow a real server: moved, retired, not loadable, unloaded, unreachable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adaptersoup.client.client import SoupClient
from adaptersoup.vllm.lora_cache import CachedLora, LoraCache
from adaptersoup.vllm.moved_names import NamePoller
from registry.errors import Forbidden
from tests.service.lora_pushes import push_lora
from tests.service.servers import BASE_ID, Live


@dataclass
class Request:
    """A LoRARequest."""

    lora_name: str

    @property
    def digest(self) -> str:
        return self.lora_name.partition("#")[0]


@dataclass
class Models:
    """vLLM's models, which resolve names as the plugin does; `broken` digests do not load."""

    cache: LoraCache
    lora_requests: dict[str, Request] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    requested: list[str] = field(default_factory=list)

    async def resolve_lora(self, lora_name: str) -> Request | None:
        self.requested.append(lora_name)
        lora = await asyncio.to_thread(self.cache.lora, lora_name)
        if lora is None:
            return None
        request = Request(lora.name)
        if request.digest in self.broken:
            raise ValueError("The rank is too large.")
        return self.lora_requests.setdefault(lora_name, request)

    def follow(self, rounds: int = 1) -> None:
        """Run the loop for a number of rounds."""
        pauses = iter(range(rounds))

        async def pause(_seconds: float) -> None:
            if next(pauses, None) is None:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(NamePoller(self, self.cache).follow(pause))

    def digests(self) -> dict[str, str]:
        return {name: request.digest for name, request in self.lora_requests.items()}


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
        models.requested.clear()
        yield models


def test_names_of_one_adapter_have_requests_that_differ(models: Models, digests: list[str]) -> None:
    """vLLM's requests are equal if their names are: it would load the adapter for one of them only."""
    names = [request.lora_name for request in models.lora_requests.values()]
    assert names == [digests[0], f"{digests[0]}#2", f"{digests[0]}#3"]


def test_a_moved_alias_gets_the_other_adapter(live: Live, models: Models, digests: list[str]) -> None:
    models.follow()
    assert models.requested == []
    live.world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 2})
    models.follow()
    old, new = digests
    assert models.digests() == {"acme/law@prod": new, "acme/law@1": old, old: old}
    assert models.requested == [new]
    live.world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 1})
    models.follow()
    assert models.digests() == {"acme/law@prod": old, "acme/law@1": old, old: old}
    assert models.requested == [new], "the adapter is loaded under another name"


def test_an_alias_that_is_gone_is_forgotten(live: Live, models: Models, digests: list[str]) -> None:
    live.world.client.delete("/v1/adapters/acme/law/aliases/prod")
    models.follow()
    assert models.digests() == {"acme/law@1": digests[0], digests[0]: digests[0]}


def test_an_alias_of_what_does_not_load_is_forgotten_too(live: Live, models: Models, digests: list[str]) -> None:
    models.broken.add(digests[1])
    live.world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 2})
    models.follow()
    assert models.digests() == {"acme/law@1": digests[0], digests[0]: digests[0]}


def test_names_stay_while_the_server_does_not_answer(
    models: Models, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digests_before = models.digests()
    with SoupClient("http://127.0.0.1:9", "sk-soup-x", pause=lambda _: None) as client:
        models.cache = LoraCache(client, tmp_path, base_model=BASE_ID)
        models.follow()
    assert models.digests() == digests_before
    assert "vLLM's name acme/law@prod is not followed: " in caplog.text


@pytest.mark.parametrize("error", [Forbidden("This key has expired."), RuntimeError("unforeseen")])
def test_a_name_that_fails_does_not_stop_the_others(
    models: Models,
    live: Live,
    digests: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    models.lora_requests = {"acme/closed": Request(digests[0])} | models.lora_requests
    live.world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 2})
    questions: list[str] = []
    digest = models.cache.digest

    def failing(ref: str) -> str | None:
        questions.append(ref)
        if ref == "acme/closed":
            raise error
        return digest(ref)

    monkeypatch.setattr(models.cache, "digest", failing)
    models.follow(rounds=20)
    assert models.digests()["acme/law@prod"] == digests[1]
    assert models.digests()["acme/closed"] == digests[0]
    assert questions.count("acme/law@prod") == questions.count("acme/closed") == 20
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "acme/closed is not followed" in warning.getMessage()
    assert (warning.exc_info is None) == isinstance(error, Forbidden)


def test_a_name_that_was_unloaded_while_its_adapter_was_loaded_stays_away(
    live: Live, models: Models, digests: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live.world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 2})
    lora = models.cache.lora

    def unloading(ref: str) -> CachedLora | None:
        del models.lora_requests["acme/law@prod"]
        return lora(ref)

    monkeypatch.setattr(models.cache, "lora", unloading)
    models.follow()
    assert models.digests() == {"acme/law@1": digests[0], digests[0]: digests[0]}


def test_loras_that_are_not_of_the_server_are_left_alone(models: Models) -> None:
    models.lora_requests = {"mine": Request("mine")}
    models.follow()
    assert models.digests() == {"mine": "mine"}
