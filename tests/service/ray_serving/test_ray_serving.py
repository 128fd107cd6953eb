"""A server whose texts are generated on a Ray cluster of several nodes: the same answers, also when one dies."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.service.cluster import KEY, client_of, until
from tests.service.ray_serving.ray_nodes import Nodes, ray_nodes, with_token
from tests.service.servers import open_world, write_bases

pytestmark = [pytest.mark.slow, pytest.mark.long]
SOUPS = 4
CHOICES = 8
LONG = 16
TOKENS = 40


def completion_body(model: str, **more: Any) -> dict[str, Any]:
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

    def soup(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command line."""
        return subprocess.run(
            [sys.executable, "-m", "adaptersoup.cli", *words],
            capture_output=True,
            text=True,
            env={**self.variables, **variables},
            check=False,
        )


def stream(client: Any, model: str, **more: Any) -> list[str]:
    """The texts and reasons of a stream's events, in their order."""
    body = completion_body(model, stream=True, n=CHOICES, logprobs=2, **more)
    with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        return [json.dumps(event["choices"]) for event in events(answer.iter_lines())]


def listen(fleet: Fleet, ref: str, on_event: Callable[[], object] = lambda: None) -> tuple[list[str], str | None]:
    """The choices of the events of a stream until its end, and the code of its error; calls `on_event` after each."""
    got: list[str] = []
    with closing(client_of(fleet.url)) as client:
        body = completion_body(ref, stream=True, n=CHOICES, logprobs=2)
        with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                return got, answer.json()["error"]["code"]
            for event in events(answer.iter_lines()):
                if "error" in event:
                    return got, event["error"]["code"]
                got.append(json.dumps(event["choices"]))
                on_event()
    return got, None


def assert_whole_or_ended(fleet: Fleet, ref: str, got: list[str], code: str | None) -> None:
    """Assert that a stream is of this very adapter, and whole, or its beginning and an error."""
    expected = fleet.direct[ref][:-1]
    assert got == expected[: len(got)], ref
    assert (code, len(got)) in ((None, len(expected)), ("unavailable", len(got)))


def whole(client: Any, model: str) -> dict[str, Any]:
    answer = client.post("/v1/completions", json=completion_body(model, n=2, logprobs=1, echo=True))
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
    with ray_nodes(2) as nodes:
        variables = with_token(
            SOUP_BASES=str(bases),
            SOUP_DATA=str(data),
            SOUP_RAY_ADDRESS=nodes.address,
            SOUP_ENGINE_ROWS="1",
            SOUP_THREADS="1",
            OMP_NUM_THREADS="1",
            SOUP_PAGES="false",
            SOUP_PORT="0",
            SOUP_RAY_SECONDS="20",
        )
        fleet = Fleet("", httpx2.Client(), nodes, variables, refs, direct)
        deployed = fleet.soup("ray", "deploy", "--replicas", "2", "--cpus", "0.6", "--json")
        assert deployed.returncode == 0, deployed.stderr
        assert json.loads(deployed.stdout)["replicas"] == {"RUNNING": 2}
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "adaptersoup.cli", "serve"], stdout=subprocess.PIPE, stderr=log, env=variables
            )
        try:
            fleet.url = server.stdout.readline().decode().strip()
            assert fleet.url.startswith("http"), (folder / "log").read_text()
            with closing(client_of(fleet.url)) as fleet.client:
                yield fleet
            server.terminate()
            assert server.wait(60) == 0, (folder / "log").read_text()
        finally:
            server.kill()
            server.communicate()


def test_streams_are_those_of_a_server_without_ray(fleet: Fleet) -> None:
    for ref in fleet.refs:
        assert [*stream(fleet.client, ref), json.dumps(whole(fleet.client, ref))] == fleet.direct[ref]


def test_readiness_is_a_token_from_a_replica(fleet: Fleet) -> None:
    answer = fleet.client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["base/tiny"]) == (200, "ok")
    assert "soup_engine_bases_held 0.0" in fleet.client.get("/metrics").text  # the server loads no base model for it


def test_another_token_is_refused_at_once(fleet: Fleet) -> None:
    status = fleet.soup("ray", "status", RAY_AUTH_TOKEN="wrong")
    assert (status.returncode, "refuses this token" in status.stderr) == (1, True)
    server = fleet.soup("serve", RAY_AUTH_TOKEN="wrong", SOUP_DATA=fleet.variables["SOUP_DATA"] + "-2")
    assert (server.returncode, "refuses this token" in server.stderr) == (1, True)


def test_replicas_that_are_taken_away_under_streams_let_nobody_hear_another_adapter(fleet: Fleet) -> None:
    """Streams follow each other for each adapter while two replicas make room for one; it is two again afterwards."""
    done = threading.Event()

    def listening(ref: str) -> list[tuple[list[str], str | None]]:
        streams = []
        while not done.is_set():
            streams.append(listen(fleet, ref))
        return streams

    def replicas() -> dict[str, int]:
        return dict(json.loads(fleet.soup("ray", "status", "--json").stdout)["replicas"])

    with ThreadPoolExecutor(len(fleet.refs)) as pool:
        running = [pool.submit(listening, ref) for ref in fleet.refs]
        try:
            deployed = fleet.soup("ray", "deploy", "--replicas", "1", "--cpus", "0.6", "--json")
            assert deployed.returncode == 0, deployed.stderr
            until(lambda: replicas() == {"RUNNING": 1}, "one replica")
        finally:
            done.set()
        all_streams = [future.result(120) for future in running]
    for ref, streams in zip(fleet.refs, all_streams, strict=True):
        for got, code in streams:
            assert_whole_or_ended(fleet, ref, got, code)
        assert sum(code is None for _, code in streams) > 0
    deployed = fleet.soup("ray", "deploy", "--replicas", "2", "--cpus", "0.6", "--json")
    assert deployed.returncode == 0, deployed.stderr
    until(lambda: replicas() == {"RUNNING": 2}, "two replicas")


def test_a_node_that_dies_in_the_midst_of_streams_lets_nobody_hear_another_adapter(fleet: Fleet) -> None:
    """Streams of that node end with a sentence; requests that had no token yet are answered by the other node."""
    refs = fleet.refs * 2
    first = threading.Event()
    with ThreadPoolExecutor(len(refs)) as pool:
        running = [pool.submit(listen, fleet, ref, first.set) for ref in refs]
        assert first.wait(60)
        fleet.nodes.tell("kill 0")
        streams = [future.result(120) for future in running]
    for ref, (got, code) in zip(refs, streams, strict=True):
        assert_whole_or_ended(fleet, ref, got, code)
    assert sum(code is None for _, code in streams) > 0


def test_a_stream_that_has_begun_on_a_node_that_dies_ends_with_a_sentence(fleet: Fleet) -> None:
    """One replica is left: it has the stream whose first token was seen. Another node then takes its place."""
    body = completion_body(fleet.refs[1], stream=True, n=LONG)
    with fleet.client.stream("POST", "/v1/completions", json=body) as answer:
        stream_events = events(answer.iter_lines())
        assert "choices" in next(stream_events)
        fleet.nodes.tell("kill 1")
        *tokens, last = stream_events
    assert last["error"]["code"] == "unavailable"
    assert len(tokens) < LONG * TOKENS
    fleet.nodes.tell("add")
    until(
        lambda: fleet.client.post("/v1/completions", json=completion_body("tiny")).status_code == 200, "another replica"
    )
    for ref in fleet.refs:
        assert [*stream(fleet.client, ref), json.dumps(whole(fleet.client, ref))] == fleet.direct[ref]


def test_without_replicas_a_request_is_told_when_to_come_again(fleet: Fleet) -> None:
    removed = fleet.soup("ray", "remove", "--json")
    assert (removed.returncode, json.loads(removed.stdout)["deleted"]) == (0, True), removed.stderr
    status = fleet.soup("ray", "status")
    assert (status.returncode, "soup ray deploy" in status.stderr) == (1, True)
    answer = fleet.client.post("/v1/completions", json=completion_body("tiny"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
