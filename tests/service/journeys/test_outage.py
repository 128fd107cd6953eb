"""PostgreSQL gone while a server works: 503 in one sentence, nothing half there, and on it goes when it is back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy.exc import OperationalError

from registry.catalogue.adapters import Adapters
from registry.errors import InvalidParameter, Unavailable
from registry.names import sha256_digest
from service.http.routes import jobs as jobs_route
from service.jobs import runner as jobs_module
from service.runtime import Runtime
from service.settings import Settings
from tests.postgres import Postgres, postgres_server
from tests.service.answers import temporary_refusal
from tests.service.cluster import ended, until
from tests.service.http.stock import queue_job
from tests.service.passages import passages
from tests.service.servers import BASE_ID, World, adapter_weights, open_world, serving, write_bases

PASSWORD = "hunter2-and-more"


@pytest.fixture(scope="module")
def database_server() -> Iterator[Postgres]:
    """A PostgreSQL that only this module stops."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def world(database_server: Postgres, tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server on it; its URL has a password, which a server that trusts everybody does not look at."""
    folder = tmp_path_factory.mktemp("outage")
    bases = write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir})
    url = database_server.url().replace("postgres:@", f"postgres:{PASSWORD}@")
    assert PASSWORD in url
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_module, "IDLE_SECONDS", 0.05)
        yield from open_world(folder / "data", bases, database_url=url, ready_seconds=0, job_lease_seconds=1)


@pytest.fixture(autouse=True)
def _back_again(database_server: Postgres) -> Iterator[None]:
    yield
    database_server.start()


def unavailable_message(answer: Any) -> str:
    """The sentence of a 503, which does not tell the password."""
    assert PASSWORD not in answer.text
    return temporary_refusal(answer)


def names(world: World) -> list[str]:
    return [row["name"] for row in world.client.get("/v1/adapters").json()["data"]]


def test_every_request_says_so_and_the_next_one_after_it_works(database_server: Postgres, world: World) -> None:
    world.push("acme/there")
    database_server.stop()
    for path in ("/v1/adapters", "/v1/adapters/acme/there", "/v1/jobs", "/v1/keys", "/v1/models"):
        assert "does not answer" in unavailable_message(world.client.get(path))
    unavailable_message(world.client.post("/v1/completions", json={"model": "acme/there", "prompt": "The"}))
    assert world.client.get("/healthz").status_code == 200
    ready = world.client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["database"]) == (503, "does not answer")
    database_server.start()
    assert names(world) == ["there"]
    assert world.client.get("/readyz").status_code == 200


def is_background_thread() -> bool:
    """Return True in a thread that has transactions at any time: of jobs, and of periodic work such as usage."""
    return threading.current_thread().name.startswith("soup-")


def gone_at(database_server: Postgres, monkeypatch: pytest.MonkeyPatch, world: World, moment: str) -> None:
    """Have PostgreSQL go at a moment of the next push."""
    gone = threading.Event()

    def going(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not gone.is_set() and not is_background_thread():
                gone.set()
                database_server.stop()
            return real(*args, **kwargs)

        return call

    place, name = {
        "as its bytes are stored": (world.registry.blobs, "put_bytes"),
        "between its rows": (Adapters, "add"),
        "as it is committed": (world.runtime.database.engine.dialect, "do_commit"),
    }[moment]
    monkeypatch.setattr(place, name, going(getattr(place, name)))


@pytest.mark.parametrize("moment", ["as its bytes are stored", "between its rows", "as it is committed"])
def test_gone_during_a_push_leaves_nothing_half_there(
    database_server: Postgres, world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    name = "acme/" + moment.replace(" ", "-")
    texts = passages("kitchen", 25, seed=len(moment))
    weights = sha256_digest(adapter_weights(world.runtime, seed=len(moment)))
    jobs = len(world.client.get("/v1/jobs").json()["data"])
    with monkeypatch.context() as patch:
        gone_at(database_server, patch, world, moment)
        with pytest.raises(AssertionError, match="unavailable"):
            world.push(name, seed=len(moment), sample={"texts": texts})
    database_server.start()
    assert world.client.get(f"/v1/adapters/{name}").status_code == 404
    assert world.client.head(f"/v1/blobs/{weights}").status_code == 404
    assert len(world.client.get("/v1/jobs").json()["data"]) == jobs
    assert world.push(name, seed=len(moment), sample={"texts": texts})["version"] == 1
    with world.runtime.database.read() as catalogue:
        subjects = [row.subject for row in catalogue.audit.list(None, limit=100).rows]
    assert subjects.count(f"{name}@1") == 1


@contextmanager
def lost_commit(database_server: Postgres, world: World, *, is_stored: bool = True) -> Iterator[None]:
    """The next commit of a request gets no answer: PostgreSQL goes after it until the end, or ends the session before.

    Nobody can tell whether it was stored.
    """
    dialect = world.runtime.database.engine.dialect
    commit = dialect.do_commit

    def lose(connection: Any) -> None:
        if is_background_thread():
            commit(connection)
            return
        patch.undo()
        if is_stored:
            commit(connection)
            database_server.stop()
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialect, "do_commit", lose)
        yield
    database_server.start()


def test_gone_after_the_commit_and_before_its_answer_is_known_already(database_server: Postgres, world: World) -> None:
    """Nobody can tell whether such a push was stored; pushing again is the answer, and stores nothing twice."""
    with lost_commit(database_server, world), pytest.raises(AssertionError, match="not known whether it stored this"):
        world.push("acme/unsure", seed=12)
    assert world.push("acme/unsure", seed=12)["version"] == 1


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_cook_whose_commit_gets_no_answer_has_its_text_if_it_is_queued(
    database_server: Postgres, world: World, is_stored: bool
) -> None:
    refs = [world.push(f"acme/part-{seed}", seed=seed)["ref"] for seed in (13, 14)]
    request = {"recipe": {"ingredients": [{"ref": ref} for ref in refs]}}
    with lost_commit(database_server, world, is_stored=is_stored):
        assert "not known whether it stored this" in unavailable_message(world.client.post("/v1/soups", json=request))
    jobs = world.client.get("/v1/jobs", params={"kind": "cook"}).json()["data"]
    if is_stored:
        assert [ended(world.client, job["id"])["state"] for job in jobs] == ["succeeded"]
    else:
        blobs = world.registry.blobs
        texts = [digest for digest in blobs.digests() if refs[0].encode() in blobs.read(digest)]
        assert (jobs, texts) == ([], [])


def test_the_events_of_a_job_go_on_when_it_is_back(
    database_server: Postgres, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_route, "KEEPALIVE_SECONDS", 0.02)
    job = queue_job(world)
    with serving(world.app, world.runtime.settings) as port:
        url = f"http://127.0.0.1:{port}/v1/jobs/{job}/events"
        with httpx2.stream("GET", url, headers=world.headers(world.admin), timeout=30) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: progress"
            database_server.stop()
            assert ": the database is busy or away" in islice(lines, 1000)
            database_server.start()
            assert world.client.post(f"/v1/jobs/{job}/cancel").status_code == 200
            assert "event: done" in islice(lines, 1000)


def test_the_queue_goes_on_and_the_log_tells_no_password(
    database_server: Postgres, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Enqueued, then away, then back: the job ends as if nothing had been."""
    pushed = world.push("acme/later", seed=11, sample={"texts": passages("court", 25)})
    with caplog.at_level(logging.INFO):
        database_server.stop()
        unavailable_message(world.client.get("/v1/jobs"))
        until(lambda: any("claimed" in message or "heartbeat" in message for message in caplog.messages))
        database_server.start()
    assert PASSWORD not in caplog.text
    row = ended(world.client, pushed["job"])
    assert row["state"] == "succeeded", row
    assert sum("no job can be claimed" in message for message in caplog.messages) == 1  # not every second of it
    assert world.client.get("/v1/adapters/acme/later").json()["sample_state"] == "ready"


def test_a_start_without_it_is_one_sentence_without_the_password(database_server: Postgres, tmp_path: Path) -> None:
    url = database_server.url().replace("postgres:@", f"postgres:{PASSWORD}@")
    settings = Settings(data=tmp_path / "data", database_url=url)
    assert PASSWORD not in repr(settings)
    database_server.stop()
    runtime = Runtime(settings)
    with pytest.raises(Unavailable, match=r"cannot be used .*: check SOUP_DATABASE_URL") as caught:
        runtime.start()
    assert "\n" not in caught.value.message
    assert PASSWORD not in caught.value.message


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://soup:a@{PASSWORD}@db/soup",
        f"postgresql+asyncpg://soup:{PASSWORD}@db/soup",
        f"postgresql+psycopg_async://soup:{PASSWORD}@db/soup",
        f"mysql://soup:{PASSWORD}@db/soup",
        "sqlite+aiosqlite:///soup.db",
        PASSWORD,
    ],
)
def test_a_url_that_is_none_is_not_repeated(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidParameter, match="SOUP_DATABASE_URL") as caught:
        Runtime(Settings(data=tmp_path, database_url=url))
    assert PASSWORD not in caught.value.message
    assert caught.value.__cause__ is None


@contextmanager
def standby(database_server: Postgres) -> Iterator[None]:
    """The database is a standby while open, promoted afterwards: as one is that a failover has put in its place."""
    database_server.stop()
    (database_server.folder / "standby.signal").touch()
    starting = threading.Thread(target=database_server.start)  # it waits for one that takes writes
    starting.start()
    try:
        until(lambda: is_standby(database_server))
        yield
    finally:
        database_server.sql("SELECT pg_promote()")
        starting.join()


def is_standby(database_server: Postgres) -> bool:
    try:
        return bool(database_server.sql("SELECT pg_is_in_recovery()")[0][0])
    except OperationalError:  # it is not there yet
        return False


def test_until_a_standby_is_promoted_reads_go_on_and_writes_are_told_to_come_again(
    database_server: Postgres, world: World
) -> None:
    world.push("acme/kept")
    move = partial(world.client.put, "/v1/adapters/acme/kept/aliases/live", json={"version": 1})
    with standby(database_server):
        assert "kept" in names(world)
        completed = world.client.post("/v1/completions", json={"model": "acme/kept", "prompt": "The", "max_tokens": 1})
        assert completed.status_code == 200
        for _ in range(3):  # also on a connection that has read before
            assert "no writes" in unavailable_message(move())
            names(world)
    assert until(lambda: (answer := move()).status_code == 200 and answer)
