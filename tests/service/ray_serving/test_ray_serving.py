"""A server whose texts are generated on a Ray cluster of several nodes: the same answers, also when one dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.service.cluster import KEY, client_of
from tests.service.ray_serving.ray_nodes import Nodes, ray_nodes, with_token
from tests.service.servers import open_world, write_bases

pytestmark = pytest.mark.slow
SOUPS = 4
CHOICES = 8
TOKENS = 40


def asked(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "prompt": "the", "max_tokens": TOKENS, "temperature": 0.9, "seed": 7, **more}


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[len("data: ") :])


@dataclass
class Fleet:
    """A server over Ray, and what the same registry answered without Ray."""

    url: str
    client: httpx2.Client
    nodes: Nodes
    variables: dict[str, str]
    refs: list[str] = field(default_factory=list)
    direct: dict[str, list[str]] = field(default_factory=dict)
    """Of each model the data of all events of a stream."""
    writer: str = ""
    """A key that may not infer."""

    def soup(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command line."""
        return subprocess.run(
            [sys.executable, "-m", "service.cli", *words],
            capture_output=True, text=True, env={**self.variables, **variables}, check=False,
        )  # fmt: skip


def stream(client: Any, model: str, **more: Any) -> list[str]:
    """The texts and reasons of a stream's events, in their order."""
    body = asked(model, stream=True, n=CHOICES, logprobs=2, **more)
    with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        return [json.dumps(one["choices"]) for one in events(answer.iter_lines())]


def whole(client: Any, model: str) -> dict[str, Any]:
    answer = client.post("/v1/completions", json=asked(model, n=2, logprobs=1, echo=True))
    assert answer.status_code == 200, answer.text
    return {
        "choices": answer.json()["choices"],
        "usage": answer.json()["usage"],
        "digest": answer.headers["x-soup-digest"],
    }


@pytest.fixture(scope="module")
def fleet(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("ray")
    bases = write_bases(folder / "bases.toml", {"tiny": tiny_base_dir})
    data = folder / "data"
    refs, direct = ["tiny"], {}
    for world in open_world(data, bases, bootstrap_key=KEY, engine_rows=1, pages=False):
        refs += [world.push(f"team/soup{seed}", seed=seed)["ref"] for seed in range(1, SOUPS + 1)]
        direct = {ref: [*stream(world.client, ref), json.dumps(whole(world.client, ref))] for ref in refs}
        writer = world.key(["write"])
    with ray_nodes(2) as nodes:
        variables = with_token(
            SOUP_BASES=str(bases), SOUP_DATA=str(data), SOUP_RAY_ADDRESS=nodes.address, SOUP_ENGINE_ROWS="1",
            SOUP_THREADS="1", OMP_NUM_THREADS="1", SOUP_PAGES="false", SOUP_PORT="0", SOUP_RAY_SECONDS="60",
        )  # fmt: skip
        found = Fleet("", httpx2.Client(), nodes, variables, refs, direct, writer)
        deployed = found.soup("ray", "deploy", "--replicas", "2", "--cpus", "0.6", "--json")
        assert deployed.returncode == 0, deployed.stderr
        assert json.loads(deployed.stdout)["replicas"] == {"RUNNING": 2}
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "service.cli", "serve"], stdout=subprocess.PIPE, stderr=log, env=variables
            )
        try:
            assert server.stdout is not None
            found.url = server.stdout.readline().decode().strip()
            assert found.url.startswith("http"), (folder / "log").read_text()
            with closing(client_of(found.url)) as found.client:
                yield found
            server.terminate()
            assert server.wait(60) == 0, (folder / "log").read_text()
        finally:
            server.kill()
            server.communicate()


def test_streams_are_those_of_a_server_without_ray(fleet: Fleet) -> None:
    for ref in fleet.refs:
        assert [*stream(fleet.client, ref), json.dumps(whole(fleet.client, ref))] == fleet.direct[ref]
