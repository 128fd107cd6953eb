"""`soup route` before real servers: the right adapter whoever answers, and what happens where one goes or comes."""

from __future__ import annotations

import base64
import itertools
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pytest
import torch

from registry.adapters import create
from registry.adapters.weights import save_tensors
from registry.base_model import shape_of
from registry.spec import BaseEntry
from tests.postgres import Postgres
from tests.service.cluster import KEY, Cluster, Process, client_of, cluster, until
from tests.service.servers import BASE_ID, CONFIG, Soup, write_bases

pytestmark = pytest.mark.slow
ADAPTERS = 12
THREADS = 4


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
    """Two servers, a router before them, and adapters whose texts differ."""

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
        replicas, router = [found.replica() for _ in range(2)], found.router()
        for one in (*replicas, router):
            one.wait()
        with client_of(router.url) as client:
            until(lambda: client.get("/readyz").status_code == 200)  # a server is listed once it listens
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


@dataclass
class Traffic:
    """Threads that ask for one adapter after the other and look at each answer, until they are told to stop."""

    world: World
    wrong: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    """Streams that had begun on a server that ended."""
    answered: Counter[str] = field(default_factory=Counter)
    """By replica."""

    def ask(self, number: int, over: Event) -> None:
        names = sorted(self.world.digests)
        with client_of(self.world.router.url) as client:
            for turn in itertools.count(number):
                if over.is_set():
                    return
                name, stream = names[turn % len(names)], turn % 3 == 0
                try:
                    self.answered[self.one(client, name, stream=stream)] += 1
                except Exception as error:
                    self.wrong.append(f"{name}: {error!r}")

    def one(self, client: httpx2.Client, name: str, *, stream: bool) -> str:
        answer = client.post("/v1/completions", json=asked(name, stream=stream))
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-soup-digest"] == self.world.digests[name]
        if stream:
            *events, last = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
            text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
            if last == "[DONE]":
                assert text == self.world.said[name][0]
            else:  # it had begun where the server was killed: it ends with the error, and nothing wrong before it
                assert json.loads(last)["error"]["code"] == "unavailable", last
                assert self.world.said[name][0].startswith(text)
                self.cut.append(name)
        else:
            assert answer.json()["choices"][0]["text"] == self.world.said[name][0]
        return answer.headers["x-soup-replica"]


@contextmanager
def traffic(world: World, threads: int = THREADS) -> Iterator[Traffic]:
    """Traffic while open."""
    found, over = Traffic(world), Event()
    with ThreadPoolExecutor(threads) as pool:
        for number in range(threads):
            pool.submit(found.ask, number * 3, over)
        try:
            yield found
        finally:
            over.set()


def test_servers_come_and_go_and_every_answer_is_of_the_right_adapter(world: World) -> None:
    """One is killed, one is stopped, one comes: nothing is wrong, and what had not begun to stream is not lost."""

    def ids() -> set[str]:
        listed = world.client.get("/v1/replicas").json()["data"]
        return {one["id"] for one in listed if one["alive"]}

    def all_answer(found: Traffic) -> bool:
        """Each that is there answers again, and none that is not."""
        found.answered.clear()
        until(lambda: found.wrong or set(found.answered) >= there, "an answer of each replica")
        return not found.wrong

    there = ids()
    with traffic(world) as found:
        assert all_answer(found), found.wrong[:5]
        comes = world.cluster.replica()
        killed = world.replicas.pop(0)
        killed.end(signal.SIGKILL)
        there = until(lambda: len(now := ids()) == 1 and now, "the killed one is out")
        assert all_answer(found), found.wrong[:5]
        comes.wait()
        there = until(lambda: len(now := ids()) == 2 and now, "the new one is there")
        assert all_answer(found), found.wrong[:5]
        world.replicas.pop(0).end(signal.SIGTERM)
        there = ids()
        assert len(there) == 1, "who is stopped leaves by itself"
        assert all_answer(found), found.wrong[:5]
    assert not found.wrong, found.wrong[:5]
    assert len(found.cut) <= 2 * THREADS, "of each thread the one that was under way, twice"


def test_an_alias_that_moves_is_seen_by_the_next_request(world: World) -> None:
    """Whatever the router remembers: the server that answers looks again."""
    names = sorted(world.digests)[:2]
    for version, name in enumerate(names, start=1):
        push(world.client, "acme/moving", weights_of(world, name))
        alias = world.client.put("/v1/adapters/acme/moving/aliases/live", json={"version": version})
        assert alias.status_code == 200, alias.text
    for turn in range(40):
        version = turn % 2 + 1
        world.client.put("/v1/adapters/acme/moving/aliases/live", json={"version": version})
        answer = world.client.post("/v1/completions", json=asked("acme/moving@live"))
        assert answer.headers["x-soup-digest"] == world.digests[names[version - 1]]


def weights_of(world: World, name: str) -> bytes:
    return world.client.get(f"/v1/adapters/{name}/files/adapter_model.safetensors").content


def test_a_router_starts_without_torch() -> None:
    code = (
        "import sys, service.router.app, service.cli.verbs.route, service.storage, service.http.connections;"
        "print({'torch', 'transformers', 'sentence_transformers', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_router_needs_a_database_that_servers_share(command: Soup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOUP_DATABASE_URL", raising=False)
    code, _, said = command("route", "--port", 0)
    assert code == 1
    assert "set SOUP_DATABASE_URL to the one that they share" in said


def test_the_command_line_lists_the_servers(world: World, command: Soup) -> None:
    code, out, _ = command("replicas", "--url", world.router.url, "--key", KEY)
    assert code == 0
    header = "REPLICA VERSION ROLE URL STATE SILENT S REQUESTS PLACES ADAPTERS BASES"
    assert out.split("\n")[0].split() == header.split()
    assert out.count("http://127.0.0.1:") >= 1
