"""Two real servers behind a proxy: the right adapter whoever answers, while servers are killed, stopped and started."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pytest

from tests.postgres import Postgres
from tests.service.answers import answered
from tests.service.cluster import Cluster, Process, client_of, cluster, free_port, until
from tests.service.proxies import PROXIES, proxy
from tests.service.pushes import manifest, weights_for
from tests.service.servers import BASE_ID, write_bases

pytestmark = pytest.mark.slow
ADAPTERS = 12
THREADS = 4


def completion_body(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": "The court held", "temperature": 0, "max_tokens": 6, "logprobs": 0, **more}


def text_and_likelihood(answer: dict[str, Any]) -> tuple[str, float]:
    """The text of an answer and how likely its first token was, which together tell the adapters apart."""
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"][0]


@dataclass
class World:
    """Two servers at ports that stay, and adapters whose texts differ."""

    cluster: Cluster
    servers: dict[int, Process]
    """By port."""
    digests: dict[str, str]
    completions: dict[str, tuple[str, float]]

    def start(self, port: int) -> None:
        """Start a server at a port if none runs there, and wait until it answers."""
        if port not in self.servers or self.servers[port].process.poll() is not None:
            self.servers[port] = self.cluster.server(port=port)
            self.servers[port].wait()


@pytest.fixture(scope="module")
def world(postgres: Postgres, tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("cluster")
    url = postgres.url()
    bases = write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir})
    with cluster(folder / "processes", bases=bases, database_url=url, role="api") as processes:
        world = World(processes, {}, {}, {})
        for port in (free_port(), free_port()):
            world.start(port)
        with client_of(world.servers[port].url) as client:
            for seed in range(ADAPTERS):
                name = f"acme/canary-{seed}"
                weights = weights_for(tiny_base_dir, seed=seed)
                world.digests[name] = answered(client.post("/v1/adapters", json=manifest(name, weights)), 201)["digest"]
                world.completions[name] = text_and_likelihood(
                    client.post("/v1/completions", json=completion_body(name)).json()
                )
        assert len({(text, round(likely, 3)) for text, likely in world.completions.values()}) == ADAPTERS
        yield world
    postgres.drop(url)


@dataclass
class Traffic:
    """Threads that ask for one adapter after the other and look at each answer, until they are told to stop."""

    world: World
    url: str
    wrong: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    """Streams that had begun on a server that ended."""
    answered: int = 0

    def ask(self, number: int, over: Event) -> None:
        names = sorted(self.world.digests)
        with client_of(self.url) as client:
            for turn in itertools.count(number):
                if over.is_set():
                    return
                name, stream = names[turn % len(names)], turn % 3 == 0
                try:
                    (self.stream if stream else self.complete)(client, name)
                    self.answered += 1
                except Exception as error:
                    self.wrong.append(f"{name}: {error!r}")

    def complete(self, client: httpx2.Client, name: str) -> None:
        answer = client.post("/v1/completions", json=completion_body(name), headers={"x-soup-model": name})
        assert answer.status_code == 200, (answer.status_code, answer.text, dict(answer.headers))
        assert answer.headers["x-soup-digest"] == self.world.digests[name]
        assert answer.json()["choices"][0]["text"] == self.world.completions[name][0]

    def stream(self, client: httpx2.Client, name: str) -> None:
        text = last = ""
        body = completion_body(name, stream=True)
        try:
            with client.stream("POST", "/v1/completions", json=body, headers={"x-soup-model": name}) as answer:
                assert answer.status_code == 200, answer.read()
                for line in filter(None, answer.iter_lines()):
                    last = line.removeprefix("data: ")
                    if last.startswith('{"id"'):
                        text += json.loads(last)["choices"][0]["text"]
        except httpx2.RemoteProtocolError:  # it had begun where the server was killed
            last = ""
        if last == "[DONE]":
            assert text == self.world.completions[name][0]
        else:
            assert self.world.completions[name][0].startswith(text)
            self.cut.append(name)

    def goes_on(self) -> None:
        """Wait until every adapter was asked for some times more."""
        answered_before = self.answered
        until(lambda: self.wrong or self.answered > answered_before + 5 * ADAPTERS, "answers")
        assert not self.wrong, self.wrong[:5]


@contextmanager
def traffic(world: World, url: str) -> Iterator[Traffic]:
    """Traffic while open."""
    load, over = Traffic(world, url), Event()
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(THREADS):
            pool.submit(load.ask, number * 3, over)
        try:
            yield load
        finally:
            over.set()


@pytest.mark.long
@pytest.mark.parametrize("name", [PROXIES[0], *PROXIES[2:]])
def test_servers_come_and_go_and_every_answer_is_of_the_right_adapter(name: str, world: World, tmp_path: Path) -> None:
    """One is killed and comes back, the other is stopped: what had not begun to stream is not lost."""
    first, second = world.servers
    world.start(second)  # which the test before has stopped
    with proxy(name, [first, second], tmp_path) as url, traffic(world, url) as load:
        load.goes_on()
        world.servers[first].end(signal.SIGKILL)
        load.goes_on()
        world.start(first)
        with client_of(world.servers[first].url) as client:
            until(lambda: load.wrong or served(client) > 0, "requests of the one that came back")
        load.goes_on()
        world.servers[second].end(signal.SIGTERM)
        load.goes_on()
    assert not load.wrong, load.wrong[:5]
    assert len(load.cut) <= 2 * THREADS, "of each thread the one that was under way, twice"


def served(client: httpx2.Client) -> float:
    """How many completions a server has answered."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[1]) for line in lines if "requests_total{" in line and "/v1/completions" in line)
