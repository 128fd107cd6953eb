"""Several servers on one PostgreSQL and one folder of blobs: what one stores another serves, and work is done once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from registry.errors import Incompatible, InvalidParameter
from registry.names import sha256_digest
from service.runtime import Runtime
from service.settings import Settings
from tests.postgres import Postgres
from tests.registry.catalogue.test_replicas import last_beats
from tests.service.answers import refusal
from tests.service.cluster import ended, until
from tests.service.passages import WORDS, passages
from tests.service.servers import BASE_ID, DECLARED, World, adapter_weights, opened_world, running, write_bases
from tests.tiny_models import build_tiny_base

KEY = "sk-soup-" + "k" * 43
PASSWORD = "hunter2-and-more"


@pytest.fixture(scope="module")
def shared(
    postgres: Postgres, tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """Settings that every server of this module has, but for its data folder."""
    folder = tmp_path_factory.mktemp("several")
    url = postgres.url()
    yield {
        "bases": write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir}),
        "blobs": folder / "blobs",
        "bootstrap_key": KEY,
        "database_url": url.replace("postgres:@", f"postgres:{PASSWORD}@"),
        "refit_delay_seconds": 0.0,
    }
    postgres.drop(url)


@pytest.fixture(scope="module")
def servers(shared: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    """Two servers; the second starts while the first is there."""
    with ExitStack() as stack:
        opened = [
            stack.enter_context(opened_world(tmp_path_factory.mktemp("data"), processes=True, **shared))
            for _ in range(2)
        ]
        yield (opened[0], opened[1])


def cook(world: World, **body: Any) -> Any:
    return world.client.post("/v1/soups", json={"verify": False, "wait": 60, **body})


def test_what_one_stores_the_other_serves(servers: tuple[World, World]) -> None:
    first_server, second_server = servers
    assert first_server.admin == second_server.admin == KEY
    assert [row["name"] for row in first_server.client.get("/v1/keys").json()["data"]].count("admin") == 1
    pushed = first_server.push("acme/court", seed=1)
    assert second_server.client.get("/v1/adapters/acme/court").json()["digest"] == pushed["digest"]
    weights = second_server.client.get("/v1/adapters/acme/court/files/adapter_model.safetensors").content
    assert weights == adapter_weights(first_server.runtime, seed=1)
    body = {"model": "acme/court", "prompt": "The court", "temperature": 0, "max_tokens": 5}
    first, second = (server.client.post("/v1/completions", json=body).json() for server in servers)
    assert first["choices"] == second["choices"]
    second_server.client.delete("/v1/adapters/acme/court")
    assert first_server.client.post("/v1/completions", json=body).status_code == 410


def test_an_alias_that_one_moves_the_next_request_to_the_other_follows(servers: tuple[World, World]) -> None:
    """Nothing is kept by name, so that there is nothing to tell."""
    digests = [servers[0].push("acme/moving", seed=seed)["digest"] for seed in (60, 61)]
    body = {"model": "acme/moving@live", "prompt": "The court", "max_tokens": 1}
    for turn in range(6):
        here, there = servers[turn % 2], servers[1 - turn % 2]
        moved = here.client.put("/v1/adapters/acme/moving/aliases/live", json={"version": turn % 2 + 1})
        assert moved.status_code == 200, moved.text
        assert there.client.post("/v1/completions", json=body).headers["x-soup-digest"] == digests[turn % 2]


def test_a_pool_is_fitted_once_and_refitted_once(servers: tuple[World, World]) -> None:
    first_server, second_server = servers
    for seed, domain in enumerate(WORDS):
        server = servers[seed % 2]
        sample = {"texts": passages(domain, 20)}
        job = server.push(f"pool/{domain}", seed=seed, domain=domain, sample=sample, provenance=DECLARED)["job"]
        ended(second_server.client, job)
    sample = {"texts": passages("kitchen", 25, seed=5)}
    body = {"sample": sample, "selector": {"kind": "uniform"}, "pool": {"namespaces": ["pool"]}}
    with ThreadPoolExecutor(2) as pool:
        soups = list(pool.map(lambda server: cook(server, **body), servers))
    assert {answer.status_code for answer in soups} <= {200, 201}, [answer.text for answer in soups]
    assert len({answer.json()["digest"] for answer in soups}) == 1
    assert len(first_server.client.get("/v1/adapters", params={"kind": "soup"}).json()["data"]) == 1
    newer = second_server.push(
        "pool/court", seed=50, domain="court", sample={"texts": passages("court", 20, seed=9)}, provenance=DECLARED
    )
    refits = ended(first_server.client, newer["job"])["result"]["refits"]
    assert [ended(first_server.client, job)["attempts"] for job in refits] == [1] * len(refits) != []


def test_one_waits_for_what_the_other_does_and_may_cancel_it(
    shared: dict[str, Any], servers: tuple[World, World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that runs no jobs hands them to those that do."""
    go_on, begun = threading.Event(), threading.Event()
    for server in servers:
        real = server.runtime.engine.score

        def score(*args: Any, real: Any = real, progress: Any = None, **kwargs: Any) -> Any:
            begun.set()
            while progress is not None and not go_on.wait(0.01):
                progress(0, 1)
            return real(*args, progress=progress, **kwargs)

        monkeypatch.setattr(server.runtime.engine, "score", score)
    recipe = {"ingredients": [{"ref": "pool/kitchen"}, {"ref": "pool/code", "weight": 3}]}
    sample = {"texts": passages("kitchen", 25, seed=6)}
    with opened_world(tmp_path / "third", **{**shared, "job_workers": 0}) as third:
        job = cook(third, recipe=recipe, sample=sample, verify=True, wait=0).json()["id"]
        until(begun.is_set)
        assert third.client.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"
        files = [path for path in shared["blobs"].rglob("*") if path.is_file()]
        assert not [path for path in files if path.read_bytes().startswith(b'{"request"')]
        go_on.set()
        done = cook(third, recipe=recipe, sample=sample, verify=True, wait=60)
        assert done.status_code in {200, 201}, done.text
        assert done.json()["verification"]["passages"] == 25
        assert ended(servers[0].client, job)["state"] == "cancelled"


def test_a_start_sweeps_nothing_of_the_others(
    shared: dict[str, Any], servers: tuple[World, World], tmp_path: Path
) -> None:
    """Bytes on their way to a row, and an upload that is being written."""
    blobs = servers[0].runtime.services.registry.blobs
    waiting, upload = blobs.put_bytes(b"a row will name this"), b"half of it is there"
    digest = sha256_digest(upload)
    with blobs.writer(digest, max_bytes=100) as writer:
        writer.write(upload[:5])
        with running(Settings(data=tmp_path / "third", threads=1, job_workers=0, **shared)):
            pass
        writer.write(upload[5:])
        writer.commit()
    assert blobs.read(digest) == upload
    assert blobs.has(waiting)


def test_no_command_line_shows_the_password(servers: tuple[World, World]) -> None:
    """A fit runs in a child process, which connects by itself."""
    answer = servers[0].client.post(
        "/v1/selectors", json={"selector": {"kind": "cosine"}, "pool": {"namespaces": ["pool"]}, "wait": 60}
    )
    assert answer.status_code in {200, 201}, answer.text
    children = [server.runtime.jobs.fitting._child.pid for server in servers]
    assert any(children)
    for child in filter(None, children):
        assert PASSWORD.encode() not in Path(f"/proc/{child}/cmdline").read_bytes()
        assert PASSWORD.encode() not in Path(f"/proc/{child}/environ").read_bytes()
    assert PASSWORD not in servers[0].client.get("/metrics").text


def test_a_server_with_another_state_of_a_base_is_refused_before_it_answers(
    shared: dict[str, Any], servers: tuple[World, World], tmp_path: Path
) -> None:
    """One base id in two states: what an adapter says would depend on who answers."""
    changed_base = build_tiny_base(tmp_path / "other", seed=9)
    mine = {**shared, "bases": write_bases(tmp_path / "bases.toml", {BASE_ID: changed_base})}
    runtime = Runtime(Settings(data=tmp_path / "data", threads=1, **mine))
    with pytest.raises(Incompatible, match=rf"'{BASE_ID}' differs .* from that of server \S+-[0-9a-f]{{12}} "):
        runtime.start()
    mine["bases"] = write_bases(tmp_path / "bases.toml", {"another": changed_base})
    runtime = Runtime(Settings(data=tmp_path / "data", threads=1, **mine))
    runtime.start()
    replica_id, replicas_before = runtime.presence.id, last_beats(servers[0].runtime.database).keys()
    assert replica_id not in replicas_before
    runtime.join()
    assert last_beats(servers[0].runtime.database).keys() == replicas_before | {replica_id}
    runtime.stop()
    assert last_beats(servers[0].runtime.database).keys() == replicas_before


def test_one_that_stood_still_joins_again(shared: dict[str, Any], servers: tuple[World, World], tmp_path: Path) -> None:
    """Its row is old, or is gone, after an outage of the database."""
    with opened_world(tmp_path / "third", **{**shared, "replica_beat_seconds": 0.1}) as third:
        replica_id = third.runtime.presence.id
        for change in ("UPDATE replicas SET seen_at = 1 WHERE id = %s", "DELETE FROM replicas WHERE id = %s"):
            with servers[0].runtime.database.engine.begin() as connection:
                connection.exec_driver_sql(change, (replica_id,))
            until(lambda: last_beats(servers[0].runtime.database).get(replica_id, 1) > 1)


def test_answers_and_jobs_by_servers_of_their_own(postgres_url: str, shared: dict[str, Any], tmp_path: Path) -> None:
    """One that only answers leaves a sample to be embedded to one that only runs jobs, which answers nobody."""
    mine = {**shared, "database_url": postgres_url, "blobs": tmp_path / "blobs"}
    with opened_world(tmp_path / "api", **mine, role="api") as api:
        pushed = api.push("acme/law", seed=3, domain="law", sample={"texts": passages("court", 25)})
        assert api.client.get(f"/v1/jobs/{pushed['job']}").json()["state"] == "queued"
        with opened_world(tmp_path / "worker", **mine, role="worker") as worker:
            assert ended(api.client, pushed["job"])["state"] == "succeeded"
            for path in ("/v1/models", "/v1/adapters/acme/law", "/docs", "/nothing", "/"):
                assert "runs jobs and answers no calls" in refusal(worker.client.get(path), 503)
                assert worker.client.get(path, headers={"authorization": ""}).status_code in (401, 503)
            body = {"model": "acme/law", "prompt": "a"}
            assert worker.client.post("/v1/completions", json=body).status_code == 503
            assert worker.client.post("/v1/completions", json=body, headers={"authorization": ""}).status_code == 401
            assert worker.client.get("/healthz").status_code == worker.client.get("/readyz").status_code == 200
            assert "soup_jobs_ended_total" in worker.client.get("/metrics").text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"role": "worker", "job_workers": 0, "training_workers": 0},
            "SOUP_JOB_WORKERS and SOUP_TRAINING_WORKERS are 0",
        ),
        ({"role": "api"}, "SOUP_ROLE is 'api', which needs several servers"),
        ({"role": "worker"}, "SOUP_ROLE is 'worker', which needs several servers"),
    ],
)
def test_a_part_without_work_or_of_one_server_is_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidParameter, match=message):
        Runtime(Settings(data=tmp_path, **settings))


def test_a_rate_holds_over_all_servers(servers: tuple[World, World]) -> None:
    first_server, second_server = servers
    key = first_server.client.post("/v1/keys", json={"name": "k", "scopes": ["infer"], "namespaces": ["acme"]}).json()
    first_server.client.patch(f"/v1/keys/{key['id']}/limits", json={"requests_per_minute": 4})
    body = {"model": f"base/{BASE_ID}", "prompt": "a", "max_tokens": 1}
    statuses = [
        server.client.post("/v1/completions", json=body, headers=first_server.headers(key["secret"])).status_code
        for server in (first_server, second_server) * 4
    ]
    assert statuses[:4] == [200] * 4
    assert 429 in statuses[4:6]
    answer = second_server.client.post("/v1/completions", json=body, headers=first_server.headers(key["secret"]))
    assert answer.headers["x-ratelimit-limit-requests"] == "4"
