"""A replica without Ray around it: what it does with the digests, bytes and base models that it is told of."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from registry.adapters.loadable import LoadableAdapter
from registry.errors import (
    Busy,
    Incompatible,
    Internal,
    InvalidParameter,
    InvalidPrompt,
    NotFound,
    SoupError,
    Unavailable,
)
from registry.spec import BottleneckConfig
from service.engine import Delta, GenerateRequest, SamplingParams, ScoreRequest, Ticket
from service.engine.request import Request
from service.engine_process.plan import EnginePlan, plan_of
from service.engine_process.wire import Ended, SentRequest, can_generate_elsewhere, sent_request
from service.http.readiness import AWAY, STUCK, Readiness
from service.ray_serving.deployment import Scale, deploy
from service.ray_serving.replica import Replica
from service.settings import Settings
from tests.service.servers import CONFIG, World

pytestmark = pytest.mark.anyio
PARAMS = SamplingParams(max_tokens=6, temperature=0.0)


SETTINGS = {"pages": False}


@pytest.fixture(scope="module", autouse=True)
def _stocked(world: World) -> None:
    world.push("team/a", seed=1)
    world.push("team/b", seed=2)


def request_of(world: World, ref: str | None, **more: object) -> GenerateRequest:
    adapter = None if ref is None else world.loadable(ref)
    return replace(GenerateRequest("tiny", (1, 2, 3), adapter, PARAMS), **more)


def changed(sent: SentRequest, **fields: object) -> SentRequest:
    return replace(sent, request=replace(sent.request, **fields))  # type: ignore[arg-type]


def sent_request_of(world: World, ref: str | None, **more: object) -> SentRequest:
    return sent_request(request_of(world, ref, **more), world.runtime.bases["tiny"].shape.fingerprint)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def replica(world: World, anyio_backend: str) -> AsyncIterator[Replica]:
    replica = Replica(plan_of(world.runtime.settings))
    yield replica
    replica.stop()


async def collect(replica: Replica, sent: SentRequest) -> tuple[list[Delta], Ended]:
    *pieces, ended = [piece async for piece in replica.generate(sent)]
    return [delta for piece in pieces for delta in piece], ended


async def until(done: Callable[[], bool]) -> None:
    for _ in range(1000):
        if done():
            return
        await asyncio.sleep(0.01)
    pytest.fail("the engine has requests still")


async def test_it_generates_what_the_server_does(world: World, replica: Replica) -> None:
    for ref in (None, "team/a", "team/b", "team/a"):
        expected = world.runtime.engine.submit(request_of(world, ref)).result(60)
        tokens, ended = await collect(replica, sent_request_of(world, ref))
        assert ended.outcome == replace(expected, reused=ended.outcome.reused)
        assert tuple(delta.token_id for delta in tokens) == expected.choices[0].token_ids
        assert (ended.prompt_tokens, ended.generated_tokens) == (3, len(tokens))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda sent: replace(sent, fingerprint="sha256:" + "0" * 64), Incompatible),
        (lambda sent: changed(sent, base_id="another"), NotFound),
        (lambda sent: changed(sent, prompt=()), InvalidPrompt),
        (lambda sent: changed(sent, params=replace(PARAMS, max_tokens=5000)), InvalidParameter),
    ],
)
async def test_what_cannot_be_is_an_error_that_travels(
    world: World, replica: Replica, change: Callable[[SentRequest], SentRequest], error: type[SoupError]
) -> None:
    tokens, ended = await collect(replica, change(sent_request_of(world, "team/a")))
    assert (tokens, type(ended.outcome)) == ([], error)


async def test_whoever_stops_listening_ends_the_generation(world: World, replica: Replica) -> None:
    long = sent_request_of(world, "team/a", params=replace(PARAMS, max_tokens=40, n=16))
    async with aclosing(replica.generate(long)) as pieces:
        assert await anext(pieces) == []
    await until(lambda: not replica._engine.counters()["requests"])


async def test_what_is_submitted_for_nobody_is_cancelled(
    world: World, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is gone while a thread checks its request: the engine drops what that thread hands it."""
    submit, there, gone = replica._engine.submit_all, threading.Event(), threading.Event()
    tickets: list[Ticket] = []

    def late(requests: Sequence[Request]) -> list[Ticket]:
        there.set()
        assert gone.wait(20)
        tickets.extend(submit(requests))
        return tickets

    monkeypatch.setattr(replica._engine, "submit_all", late)
    long = sent_request_of(world, None, params=SamplingParams(max_tokens=60, n=64, temperature=0.5))
    listening = asyncio.create_task(collect(replica, long))
    assert await asyncio.to_thread(there.wait, 20)
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening
    gone.set()
    await until(lambda: bool(tickets) and not replica._engine.counters()["requests"])
    counts = replica._engine.counters()
    assert (counts["requests_cancelled_total"], counts["requests_finished_total"]) == (1, 0)


async def test_whoever_listens_slowly_gets_every_token(world: World, replica: Replica) -> None:
    sent = sent_request_of(world, "team/a", params=replace(PARAMS, max_tokens=20))
    async with aclosing(replica.generate(sent)) as pieces:
        assert await anext(pieces) == []
        got = await anext(pieces)
        await until(lambda: not replica._engine.counters()["requests"])
        *rest, ended = [piece async for piece in pieces]
    tokens = [delta.token_id for piece in (got, *rest) if isinstance(piece, list) for delta in piece]
    assert tuple(tokens) == ended.outcome.choices[0].token_ids


def test_a_plan_travels_as_json_and_holds_no_secret(world: World) -> None:
    settings = Settings(
        bases=world.runtime.settings.bases,
        blobs_url="s3://bucket/prefix",
        database_url="postgresql+psycopg://soup:hidden@db/soup",
        bootstrap_key="sk-soup-" + "h" * 43,
        log_level="error",
    )
    plan = plan_of(settings)
    assert plan.log_level == "error"
    text = plan.model_dump_json()
    assert EnginePlan.model_validate_json(text) == plan
    assert "hidden" not in text
    assert "hhh" not in text
    assert plan.blobs.folder.is_absolute()
    assert plan.blobs.cache.is_absolute()


def test_replicas_without_a_base_model_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="SOUP_BASES"):
        deploy("soup", plan_of(Settings()), Scale(1, 1, 1.0, 1, 1), cpus=1.0, gpus=0.0, seconds=1.0)


def test_what_only_this_process_has_stays_here(world: World) -> None:
    in_memory = LoadableAdapter("sha256:" + "1" * 64, BottleneckConfig(**CONFIG.model_dump()), dict)
    assert can_generate_elsewhere(request_of(world, "team/a"))
    assert can_generate_elsewhere(request_of(world, None))
    assert not can_generate_elsewhere(replace(request_of(world, None), adapter=in_memory))
    assert not can_generate_elsewhere(ScoreRequest("tiny", ((1, 2),)))


@pytest.mark.parametrize(
    "error", [Busy("Full.", retry_after=7), Unavailable("Gone.", retry_after=3), InvalidParameter("No.", param="stop")]
)
def test_errors_travel_whole(error: Busy | Unavailable | InvalidParameter) -> None:
    unpickled = pickle.loads(pickle.dumps(Ended(error))).outcome
    assert (type(unpickled), unpickled.message, unpickled.param) == (type(error), error.message, error.param)
    assert getattr(unpickled, "retry_after", None) == getattr(error, "retry_after", None)


# --- /readyz of a server whose replicas are lost ---------------------------------------------------


@pytest.mark.parametrize(
    ("error", "settings", "expected"),
    [
        (Unavailable("Lost."), {"ray_address": "127.0.0.1:1"}, ("ready", AWAY)),
        (Unavailable("Lost."), {"ray_address": "127.0.0.1:1", "memory_bytes": 10**9}, ("ready", AWAY)),
        (Unavailable("Gone."), {}, ("not_ready", STUCK)),
        (Internal("Broken."), {"ray_address": "127.0.0.1:1"}, ("not_ready", STUCK)),
    ],
)
def test_a_server_without_replicas_stays_ready_and_one_whose_engine_fails_does_not(
    world: World, error: SoupError, settings: dict[str, Any], expected: tuple[str, str]
) -> None:
    services = world.runtime.services
    engine: Any = SimpleNamespace(submit=Mock(side_effect=error), loaded_bases=lambda: (), preloading=False)
    readiness = Readiness().of(replace(services, engine=engine, settings=services.settings.model_copy(update=settings)))
    assert (readiness.status, readiness.checks["base/tiny"], readiness.checks["database"]) == (*expected, "ok")
