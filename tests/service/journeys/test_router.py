"""`soup route` before real servers: the right adapter whoever answers, and what happens where one goes or comes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from registry.adapters import create
from registry.adapters.weights import save_tensors
from registry.base_model import shape_of
from registry.spec import BaseEntry
from tests.postgres import Postgres
from tests.service.cluster import Cluster, Process, client_of, cluster
from tests.service.servers import BASE_ID, CONFIG, write_bases

pytestmark = pytest.mark.slow
ADAPTERS = 12


def weights(base: Path, cache: Path, seed: int) -> bytes:
    """Weights of an adapter that visibly changes what the tiny base says."""
    module = create(CONFIG, shape_of(BaseEntry(id=BASE_ID, source=str(base)), cache), seed=seed)
    draw = torch.Generator().manual_seed(seed)
    tensors = {name: one + torch.randn(one.shape, generator=draw) for name, one in module.state_dict().items()}
    return save_tensors(tensors)


def push(client: httpx2.Client, name: str, data: bytes) -> str:
    """Push an adapter; gives its digest."""
    files = {"adapter_model.safetensors": {"base64": base64.b64encode(data).decode()}}
    body = {"name": name, "domain": "tests", "base_model": BASE_ID, "config": CONFIG.model_dump(), "files": files}
    answer = client.post("/v1/adapters", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["digest"])


def asked(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": "The court held", "temperature": 0, "max_tokens": 6, "logprobs": 0, **more}


def said(answer: dict[str, Any]) -> tuple[str, float]:
    """The text of an answer and how likely its first token was, which together tell the adapters apart."""
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"][0]


@dataclass
class World:
    """Three servers, a router before them, and adapters whose texts differ."""

    cluster: Cluster
    replicas: list[Process]
    router: Process
    client: httpx2.Client
    """Of the router."""
    digests: dict[str, str]
    said: dict[str, tuple[str, float]]

    def check(self, name: str) -> str:
        """Ask through the router; gives the replica that answered, with the right adapter."""
        answer = self.client.post("/v1/completions", json=asked(name))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-soup-digest"] == self.digests[name]
        text, likely = said(answer.json())
        assert text == self.said[name][0]
        assert likely == pytest.approx(self.said[name][1], abs=1e-4)
        return str(answer.headers["x-soup-replica"])


@pytest.fixture(scope="module")
def world(postgres: Postgres, tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cluster")
    url = postgres.url()
    bases = write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir})
    settings = {"bases": bases, "database_url": url, "replica_beat_seconds": 0.4, "role": "api"}
    with cluster(folder / "processes", **settings) as found:
        replicas, router = [found.replica() for _ in range(3)], found.router()
        for one in (*replicas, router):
            one.wait()
        with client_of(router.url) as client:
            names = [f"acme/canary-{number}" for number in range(ADAPTERS)]
            digests = {
                name: push(client, name, weights(tiny_base_dir, folder / "cache", seed))
                for seed, name in enumerate(names)
            }
            with client_of(replicas[0].url) as direct:
                known = {name: said(direct.post("/v1/completions", json=asked(name)).json()) for name in names}
            assert len({(text, round(likely, 3)) for text, likely in known.values()}) == ADAPTERS
            yield World(found, replicas, router, client, digests, known)
    postgres.drop(url)


def test_each_adapter_is_served_by_one_replica_and_all_replicas_serve_some(world: World) -> None:
    served = {name: {world.check(name) for _ in range(3)} for name in world.digests}
    assert {len(replicas) for replicas in served.values()} == {1}
    assert len(set.union(*served.values())) > 1
