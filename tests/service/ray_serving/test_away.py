"""A server's requests that are with replicas, however those behave. Ray's handle is a script here."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from registry.adapters.loadable import LoadableAdapter, Stored
from registry.base_model import LoadedBase
from registry.errors import Busy, Unavailable
from service.engine import Delta, EngineLimits, GenerateRequest, Generation, SamplingParams
from service.engine.engine import Engine
from service.engine.request import RequestTimeline, timeline_observer
from service.engine_process.wire import Ended, ReplicaMessage, SentRequest
from service.ray_serving import engine as away
from service.ray_serving.engine import RayEngine
from tests.service.cluster import until
from tests.service.loaded_bases import LoadedBases
from tests.service.servers import CONFIG

PARAMS = SamplingParams(max_tokens=6, temperature=0.0)
WHOLE = Generation(())
TOKEN = Delta(0, 5, "five", 0)
STOPPED = AioRpcError(grpc.StatusCode.CANCELLED, Metadata(), Metadata(), "the server stopped")

Script = Callable[[SentRequest], AsyncIterator[ReplicaMessage]]


class Answer:
    """A stream of a replica, as Ray's handle gives one."""

    def __init__(self, pieces: AsyncIterator[ReplicaMessage]) -> None:
        self._pieces = pieces
        self.cancelled = False

    def __aiter__(self) -> AsyncIterator[ReplicaMessage]:
        return self._pieces

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Ray's handle over replicas that do, one try after the other, what scripts say; the last one is repeated."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self.answers: list[Answer] = []
        self.model_ids: list[str] = []
        """The model that each try named."""

    def options(self, multiplexed_model_id: str) -> Handle:
        self.model_ids.append(multiplexed_model_id)
        return self

    def remote(self, request: SentRequest) -> Answer:
        script = self._scripts[min(len(self.answers), len(self._scripts) - 1)]
        self.answers.append(Answer(script(request)))
        return self.answers[-1]


@contextmanager
def served(base: LoadedBase, *scripts: Script, **limits: Any) -> Iterator[tuple[RayEngine, Handle]]:
    """An engine as after `start`, without a cluster."""
    bases, most = LoadedBases(base), EngineLimits(**limits)
    local = Engine(bases, most)
    engine = RayEngine(bases, local, address="127.0.0.1:1", app="soup", seconds=20.0, limits=most)
    handle = Handle(*scripts)
    engine._handle = handle
    engine._ray_thread.start()
    local.start()
    try:
        yield engine, handle
    finally:
        engine.stop(drain=0.0, patience=10.0)


def request_of(base: LoadedBase, **more: Any) -> GenerateRequest:
    return replace(GenerateRequest(base.entry.id, (1, 2, 3), None, PARAMS), **more)


def says(*pieces: ReplicaMessage, waits: bool = False, error: BaseException | None = None) -> Script:
    """Sends these, then waits for ever or fails."""

    async def script(_: SentRequest) -> AsyncIterator[ReplicaMessage]:
        for piece in pieces:
            yield piece
        if waits:
            await asyncio.Event().wait()
        if error is not None:
            raise error

    return script


TAKES_NOTHING = says(waits=True)
"""Does not even take a request."""


@pytest.fixture(scope="module", autouse=True)
def _ray() -> None:
    """Ray's own use of pydantic warns where it is first imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray.serve.exceptions  # noqa: F401


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(away, "PAUSE_SECONDS", 0.0)


STOPS = pytest.mark.parametrize("error", [asyncio.CancelledError(), STOPPED], ids=["cancelled", "rpc"])


@STOPS
@pytest.mark.parametrize(
    ("messages", "tries"),
    [(([],), 2), (([], [TOKEN], Ended(WHOLE, 3, 1)), 1)],
    ids=["before a token", "at the end"],
)
def test_a_replica_that_is_stopped_before_a_token_is_followed_by_another_and_one_that_has_answered_is_not(
    base: LoadedBase, error: BaseException, messages: tuple[ReplicaMessage, ...], tries: int
) -> None:
    with served(base, says(*messages, error=error), says([], Ended(WHOLE, 3, 1))) as (engine, handle):
        assert engine.submit(request_of(base)).result(20) == WHOLE
        assert len(handle.answers) == tries


@STOPS
def test_a_replica_that_is_stopped_after_a_token_is_an_error(base: LoadedBase, error: BaseException) -> None:
    with served(base, says([], [TOKEN], error=error)) as (engine, handle):
        with pytest.raises(Unavailable, match="before the answer was whole"):
            engine.submit(request_of(base)).result(20)
        assert len(handle.answers) == 1


def until_taken(engine: RayEngine) -> None:
    """Wait until replicas have all requests."""
    until(lambda: all(remote.started_at for remote in list(engine._remote.values())), "a replica that takes it")


def until_over(engine: RayEngine) -> None:
    """Wait until nothing is with replicas."""
    with engine._changed:
        assert engine._changed.wait_for(lambda: not engine._remote, 20)


def test_what_replicas_have_taken_does_not_fill_the_queue_of_the_server(base: LoadedBase) -> None:
    with served(base, says([], waits=True), max_requests=1) as (engine, handle):
        for number in range(5):
            engine.check_admission(None)
            engine.submit(request_of(base))
            until_taken(engine)
            assert len(handle.answers) == number + 1
        assert engine.counters()["requests"] == 5


def test_what_no_replica_has_taken_does(base: LoadedBase) -> None:
    with served(base, TAKES_NOTHING, max_requests=1) as (engine, _):
        engine.submit(request_of(base))
        with pytest.raises(Busy, match="limit is 1 requests"):
            engine.check_admission(None)
        ended: list[tuple[int, int]] = []
        with pytest.raises(Busy):
            engine.submit(request_of(base, on_end=lambda *of: ended.append(of)))
        assert ended == [(0, 0)]


def test_texts_are_scored_beside_a_full_queue_of_what_is_generated(base: LoadedBase) -> None:
    with served(base, TAKES_NOTHING, max_requests=1) as (engine, _):
        engine.submit(request_of(base))
        engine.check_admission(None, local=True)
        assert engine.score(base.entry.id, ["the cat"], patient=True)[0].tokens > 0


def test_a_full_replica_is_followed_by_another_whichever_knows_the_adapter(base: LoadedBase) -> None:
    full = Ended(Busy("Full.", retry_after=7))
    adapter = LoadableAdapter("sha256:" + "1" * 64, CONFIG, dict, stored=Stored("b" * 64, "sha256:" + "2" * 64))
    with served(base, says(full), says([], Ended(WHOLE, 3, 1))) as (engine, handle):
        assert engine.submit(request_of(base, adapter=adapter)).result(20) == WHOLE
        assert handle.model_ids == [adapter.digest, ""]
    with served(base, says(full)) as (engine, handle):
        with pytest.raises(Busy, match="Full") as busy:
            engine.submit(request_of(base)).result(20)
        assert (busy.value.retry_after, len(handle.answers)) == (7, away.MAX_ATTEMPTS)


@pytest.mark.parametrize(("deltas", "counted"), [([], (3, 0)), ([TOKEN], (3, 1))])
def test_a_client_that_goes_away_has_read_its_prompt_once_it_was_taken(
    base: LoadedBase, deltas: list[Delta], counted: tuple[int, int]
) -> None:
    with served(base, says([], deltas, waits=True)) as (engine, handle):
        ended: list[tuple[int, int]] = []
        came = threading.Semaphore(0)
        ticket = engine.submit(request_of(base, on_step=came.release, on_end=lambda *of: ended.append(of)))
        assert came.acquire(timeout=20)
        assert came.acquire(timeout=20)
        assert ticket.cancel()
        until_over(engine)
        assert ended == [counted]
        assert engine.counters()["requests_cancelled_total"] == 1
    assert handle.answers[0].cancelled


def test_what_was_never_taken_has_read_nothing(base: LoadedBase) -> None:
    with served(base, TAKES_NOTHING) as (engine, _):
        ended: list[tuple[int, int]] = []
        assert engine.submit(request_of(base, on_end=lambda *of: ended.append(of))).cancel()
        until_over(engine)
        assert ended == [(0, 0)]


@pytest.mark.parametrize("messages", [([],), ()], ids=["taken", "not taken"])
def test_a_request_that_replicas_die_of_ends_after_few(base: LoadedBase, messages: tuple[ReplicaMessage, ...]) -> None:
    with served(base, says(*messages, error=ConnectionError())) as (engine, handle):
        with pytest.raises(Unavailable, match="were lost"):
            engine.submit(request_of(base)).result(20)
        assert len(handle.answers) == away.MAX_ATTEMPTS


def test_who_watches_hears_of_what_is_away(base: LoadedBase) -> None:
    """Timelines come as for requests computed in this process, so that a trace has a span of the engine for each."""
    timelines: list[RequestTimeline] = []
    token = timeline_observer.set(timelines.append)
    try:
        with served(base, says([], [TOKEN], Ended(WHOLE, 3, 1)), says(error=ConnectionError())) as (engine, _):
            engine.submit(request_of(base)).result(20)
            with pytest.raises(Unavailable):
                engine.submit(request_of(base)).result(20)
    finally:
        timeline_observer.reset(token)
    finished, failed = timelines
    assert (finished.base_id, finished.digest, finished.status) == (base.entry.id, None, "finished")
    assert (finished.prompt_tokens, finished.generated_tokens) == (3, 1)
    assert finished.arrived_at <= finished.started_at <= finished.first_token_at <= finished.ended_at
    assert (failed.status, failed.started_at, failed.first_token_at) == ("failed", None, None)


def test_a_stop_does_not_wait_for_ray_for_ever(base: LoadedBase) -> None:
    let_go = threading.Event()
    with served(base, says([], waits=True)) as (engine, _):
        engine._connection.callback(let_go.wait)
        ticket = engine.submit(request_of(base))
        until_taken(engine)
        assert not engine.stop(drain=0.0, patience=1.0)
        let_go.set()
        with pytest.raises(Unavailable, match="shutting down"):
            ticket.result(0)


def test_a_stop_has_one_time_for_both_engines(base: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of this process is busy for all of it, so that nothing is left for the replicas."""
    let_go, waited = threading.Event(), []
    with served(base, says([], waits=True)) as (engine, _):
        ticket = engine.submit(request_of(base))
        busy = threading.Thread(target=let_go.wait)
        busy.start()

        def wait_for(predicate: Callable[[], object], timeout: float) -> object:
            waited.append(timeout)
            return predicate()

        with monkeypatch.context() as patch:
            patch.setattr(engine._local, "_thread", busy)
            patch.setattr(engine._changed, "wait_for", wait_for)
            assert not engine.stop(drain=0.1, patience=0.1)
        let_go.set()
        busy.join()
        assert waited[-1] == 0.0
        with pytest.raises(Unavailable, match="shutting down"):
            ticket.result(0)


def test_what_comes_after_a_stop_is_refused_and_told_of_once(base: LoadedBase) -> None:
    with served(base, says([], waits=True)) as (engine, _):
        assert engine.stop(drain=0.0, patience=10.0)
        ended: list[tuple[int, int]] = []
        with pytest.raises(Unavailable, match="shutting down"):
            engine.submit(request_of(base, on_end=lambda *of: ended.append(of)))
        assert ended == [(0, 0)]
