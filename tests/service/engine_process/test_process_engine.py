"""The engine's process: the same answers as in this one, the same errors, and what its end means for requests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from registry.adapters.loadable import LoadableAdapter
from registry.adapters.weights import load_tensors
from registry.base_model.build_lock import BUILDING
from registry.errors import Busy, Cancelled, Internal, InvalidParameter, InvalidPrompt, NotFound, Unavailable
from service.engine import Delta, GenerateRequest, SamplingParams, ScoreRequest
from service.engine.request import RequestTimeline, timeline_observer
from service.engine_process import client
from service.engine_process.calls import Peer
from service.engine_process.child import PROGRAM, engine_child
from service.engine_process.client import ProcessEngine
from service.engine_process.host import EngineHost
from service.engine_process.plan import plan_of
from service.engine_process.wire import sent_request
from tests.service.cluster import one_server, until
from tests.service.servers import BASE_ID, CONFIG, World, adapter_weights, write_bases

pytestmark = pytest.mark.slow

PARAMS = SamplingParams(max_tokens=6, temperature=0.0)
ENDLESS = SamplingParams(max_tokens=50, n=64, temperature=1.0)
SETTINGS = {"pages": False}
TEXTS = ["a soup of law and style", "the court held", "b"]


@pytest.fixture(scope="module", autouse=True)
def _stocked(world: World) -> None:
    """Two adapters of the server whose engine is in this process."""
    world.push("team/a", seed=1)
    world.push("team/b", seed=2)


@contextmanager
def process_engine(world: World, **settings: Any) -> Iterator[ProcessEngine]:
    """The engine of the same settings, in a process."""
    plan = plan_of(world.runtime.settings)
    limits = replace(plan.limits, **settings)
    engine = ProcessEngine(world.runtime.bases.allowed, plan.model_copy(update={"limits": limits}))
    try:
        engine.start([BASE_ID]).result(120)
        yield engine
    finally:
        engine.stop(drain=0.0, patience=10.0)


@pytest.fixture(scope="module")
def engine(world: World) -> Iterator[ProcessEngine]:
    with process_engine(world, max_requests=4) as engine:
        yield engine


def in_memory(world: World, seed: int) -> LoadableAdapter:
    """An adapter that only this process has, as a mixture in a request."""
    data = adapter_weights(world.runtime, seed=seed)
    return LoadableAdapter(f"sha256:{seed:064x}", CONFIG, lambda: load_tensors(data), len(data))


@dataclass
class Recorder:
    """Listeners of a request that record its deltas and its ends."""

    deltas: list[Delta] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    stepped: threading.Event = field(default_factory=threading.Event)

    def listeners(self) -> dict[str, Any]:
        return {
            "on_token": self.deltas.append,
            "on_step": self.stepped.set,
            "on_end": lambda *counts: self.ends.append(counts),
        }


def idle(engine: ProcessEngine) -> bool:
    return not engine.counters()["requests"]


def test_it_generates_what_an_engine_in_this_process_does(world: World, engine: ProcessEngine) -> None:
    """With a stored adapter, with one that only the server has, and with the base model alone."""
    for adapter in (None, world.loadable("team/a"), in_memory(world, 5), world.loadable("team/b"), in_memory(world, 6)):
        recorder = Recorder()
        request = GenerateRequest(BASE_ID, (1, 2, 3), adapter, replace(PARAMS, n=2, logprobs=1, prompt_logprobs=True))
        expected = world.runtime.engine.submit(request).result(60)
        answer = engine.submit(replace(request, **recorder.listeners())).result(60)
        assert replace(answer, reused=expected.reused) == expected
        for number, choice in enumerate(answer.choices):
            mine = [delta for delta in recorder.deltas if delta.index == number]
            assert tuple(delta.token_id for delta in mine) == choice.token_ids
            assert "".join(delta.text for delta in mine) == choice.text
        assert recorder.ends == [(3, len(recorder.deltas))]


def test_it_scores_and_embeds_what_an_engine_in_this_process_does(world: World, engine: ProcessEngine) -> None:
    for adapter in (None, world.loadable("team/a"), in_memory(world, 7)):
        assert engine.score(BASE_ID, TEXTS, adapter) == world.runtime.engine.score(BASE_ID, TEXTS, adapter)
    for mine, expected in zip(engine.embed(BASE_ID, TEXTS), world.runtime.engine.embed(BASE_ID, TEXTS), strict=True):
        assert np.array_equal(mine.vector, expected.vector)
        assert (mine.nll, mine.tokens) == (expected.nll, expected.tokens)


def test_progress_counts_texts(engine: ProcessEngine) -> None:
    progress: list[tuple[int, int]] = []
    engine.score(BASE_ID, TEXTS * 300, progress=lambda *done: progress.append(done))
    assert progress == sorted(progress)
    assert all(total == 900 for _, total in progress)


def test_an_answer_follows_its_schema(world: World, engine: ProcessEngine) -> None:
    request = GenerateRequest(BASE_ID, (5,), params=replace(PARAMS, max_tokens=30), schema='{"enum":["left","right"]}')
    [choice] = engine.submit(request).result(60).choices
    assert choice.text in ('"left"', '"right"')
    with pytest.raises(InvalidParameter):
        engine.submit(replace(request, schema='{"type":"string","pattern":"("}')).result(60)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"prompt": ()}, InvalidPrompt),
        ({"params": replace(PARAMS, max_tokens=5000)}, InvalidParameter),
        ({"base_id": "another"}, NotFound),
    ],
)
def test_a_request_that_cannot_be_is_refused_before_it_is_queued(
    world: World, engine: ProcessEngine, change: dict[str, Any], error: type[Exception]
) -> None:
    recorder = Recorder()
    request = GenerateRequest(BASE_ID, (1, 2), params=PARAMS, **recorder.listeners())
    with pytest.raises(error) as mine:
        engine.submit_all([request, replace(request, **change)])
    with pytest.raises(error) as expected:
        world.runtime.engine.submit_all([request, replace(request, **change)])
    assert str(mine.value) == str(expected.value)
    assert (recorder.deltas, recorder.ends) == ([], [(0, 0)] * 4)


def test_bytes_of_another_digest_are_an_error(world: World, engine: ProcessEngine) -> None:
    mixed = replace(world.loadable("team/a"), digest="sha256:" + "9" * 64)
    with pytest.raises(Internal, match="not those of its digest"):
        engine.submit(GenerateRequest(BASE_ID, (1, 2), mixed, PARAMS)).result(60)


def test_an_adapter_that_cannot_be_loaded_says_why(engine: ProcessEngine) -> None:
    broken = LoadableAdapter(
        "sha256:" + "8" * 64, CONFIG, Mock(side_effect=Unavailable("Its ingredients are gone.")), 100
    )
    with pytest.raises(Unavailable, match="ingredients are gone"):
        engine.submit(GenerateRequest(BASE_ID, (1, 2), broken, PARAMS)).result(60)


def test_a_cancelled_request_is_dropped_and_told_of_once(engine: ProcessEngine) -> None:
    recorder, cancelled_before = Recorder(), engine.counters()["requests_cancelled_total"]
    ticket = engine.submit(GenerateRequest(BASE_ID, (1, 2, 3), params=ENDLESS, **recorder.listeners()))
    assert recorder.stepped.wait(60)
    assert ticket.cancel()
    until(lambda: recorder.ends)
    assert idle(engine)
    assert engine.counters()["requests_cancelled_total"] == cancelled_before + 1
    assert recorder.ends == [(3, len(recorder.deltas))]


def test_a_request_that_is_queued_too_late_runs_for_nobody(
    engine: ProcessEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled_before = engine.counters()["requests_cancelled_total"]
    with monkeypatch.context() as patch:
        patch.setitem(Peer.call.__kwdefaults__, "seconds", 0.3)
        os.kill(engine._process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(Unavailable, match="not answered"):
                engine.submit(GenerateRequest(BASE_ID, (1, 2, 3), params=ENDLESS))
        finally:
            os.kill(engine._process.pid, signal.SIGCONT)
    until(lambda: engine.counters()["requests_cancelled_total"] == cancelled_before + 1)
    until(lambda: idle(engine))


def test_requests_for_a_base_model_are_queued_while_another_one_loads(world: World) -> None:
    """Loading holds the lock of everything that builds a model, for minutes if the weights are large."""
    host = EngineHost(plan_of(world.runtime.settings))
    print_of_base = world.runtime.bases.allowed.text(BASE_ID).shape.fingerprint
    sent = sent_request(GenerateRequest(BASE_ID, (1, 2), params=PARAMS), print_of_base)
    with ThreadPoolExecutor(1) as pool, BUILDING:
        assert pool.submit(lambda: host.engine.submit(host.receive(sent))).result(20)


def test_a_score_whose_progress_raises_is_cancelled(engine: ProcessEngine) -> None:
    progress = Mock(side_effect=[None, Cancelled("by the operator")])
    with pytest.raises(Cancelled, match="by the operator"):
        engine.score(BASE_ID, ["a soup of law " * 40] * 200, progress=progress)
    until(lambda: idle(engine))


def test_a_full_engine_is_busy_and_those_who_are_patient_wait(engine: ProcessEngine) -> None:
    tickets = engine.submit_all([GenerateRequest(BASE_ID, (1, 2), params=ENDLESS)] * 4)
    with pytest.raises(Busy, match="its limit is 4 requests"):
        engine.check_admission(None)
    with pytest.raises(Busy) as busy:
        engine.submit(ScoreRequest(BASE_ID, ((1, 2),)))
    assert busy.value.retry_after >= 1
    threading.Timer(0.0, lambda: [ticket.cancel() for ticket in tickets]).start()
    assert engine.score(BASE_ID, ["a soup"], patient=True)[0].tokens > 0


def test_whoever_observes_requests_gets_the_times_of_the_process(engine: ProcessEngine) -> None:
    timelines: list[RequestTimeline] = []
    token = timeline_observer.set(timelines.append)
    try:
        engine.submit(GenerateRequest(BASE_ID, (1, 2, 3), params=PARAMS)).result(60)
        engine.score(BASE_ID, ["a soup"])
    finally:
        timeline_observer.reset(token)
    generated, scored = timelines
    assert (generated.status, generated.prompt_tokens, generated.generated_tokens) == ("finished", 3, 6)
    assert generated.arrived_at <= generated.started_at <= generated.first_token_at <= generated.ended_at
    assert (scored.status, scored.first_token_at) == ("finished", None)
    assert scored.started_at is not None


def test_its_figures_are_those_of_an_engine(world: World, engine: ProcessEngine) -> None:
    assert engine.counters().keys() == world.runtime.engine.counters().keys()
    engine.submit(GenerateRequest(BASE_ID, (1, 2), params=PARAMS)).result(60)
    assert engine.loaded_bases() == (BASE_ID,)
    assert engine.is_packed(BASE_ID) is world.runtime.engine.is_packed(BASE_ID)
    assert engine.seconds_since_pass(BASE_ID) < 60
    assert engine.seconds_since_pass("another") > 1e9
    assert engine.adapter_metrics.totals()["base"].generated_tokens >= 6


# --- its end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.long)])
def test_requests_of_a_killed_process_end_with_one_error_and_another_process_serves_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """Every stream is whole, or a beginning of what this adapter says and the error. Until then nothing is taken."""
    adapters = (world.loadable("team/a"), world.loadable("team/b"), None)
    plain_requests = [
        GenerateRequest(BASE_ID, (1, 2, 3), adapter, replace(PARAMS, max_tokens=50)) for adapter in adapters
    ]
    expected = [world.runtime.engine.submit(plain).result(60).choices[0] for plain in plain_requests]
    with process_engine(world) as engine:
        for pause in (*[0.01] * (kills - 1), 1000.0):
            monkeypatch.setattr(client, "PAUSE_SECONDS", pause)
            recorders = [Recorder() for _ in plain_requests]
            requests = [
                replace(plain, **recorder.listeners())
                for plain, recorder in zip(plain_requests, recorders, strict=True)
            ]
            endless = GenerateRequest(BASE_ID, (4, 5), params=ENDLESS)
            scoring = ScoreRequest(BASE_ID, ((1, 2, 3),) * 2000)
            *tickets, unfinished, _ = engine.submit_all([*requests, endless, scoring])
            assert recorders[-1].stepped.wait(60)
            os.kill(engine._process.pid, signal.SIGKILL)
            with pytest.raises(Unavailable, match="ended before the answer was complete"):
                unfinished.result(60)
            for ticket, recorder, whole in zip(tickets, recorders, expected, strict=True):
                error = ticket.exception(60)
                tokens = tuple(delta.token_id for delta in recorder.deltas)
                assert tokens == whole.token_ids[: len(tokens)]
                assert isinstance(error, Unavailable) or (error is None and tokens == whole.token_ids)
                assert recorder.ends == [(3 if tokens else 0, len(tokens))]
            if pause < 1:
                assert len(engine.embed(BASE_ID, TEXTS, patient=True)) == len(TEXTS)  # a job waits for the next process
                until(lambda: not engine.preloading)
                assert [engine.submit(plain).result(60).choices[0] for plain in plain_requests] == expected
        assert_away(engine)


def test_a_job_waits_as_soon_as_the_process_has_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the server starts it again."""
    serve, starts_again = Peer.serve, threading.Event()

    def slow_serve(peer: Peer) -> None:
        serve(peer)
        assert starts_again.wait(60)

    monkeypatch.setattr(Peer, "serve", slow_serve)
    with process_engine(world) as engine:
        os.kill(engine._process.pid, signal.SIGKILL)
        until(lambda: engine._peer._connection.closed)
        scores = engine.score(BASE_ID, TEXTS, patient=True, progress=lambda *_: starts_again.set())
        assert len(scores) == len(TEXTS)


def assert_away(engine: ProcessEngine) -> None:
    """It says that its process is started again, and has no figures."""
    until(lambda: engine._process is None)
    assert engine.preloading
    recorder = Recorder()
    for call in (
        lambda: engine.submit(GenerateRequest(BASE_ID, (1,), **recorder.listeners())),
        lambda: engine.check_admission(None),
        engine.counters,
    ):
        with pytest.raises(Unavailable, match="is starting"):
            call()
    assert recorder.ends == [(0, 0)]
    assert (engine.loaded_bases(), engine.is_packed(BASE_ID)) == ((), None)


def test_a_process_that_no_engine_has_used_is_ended() -> None:
    """A server that cannot start leaves such a process."""
    with engine_child() as child:
        assert child.process.poll() is None
    assert child.process.returncode is not None


def test_a_stop_ends_requests_and_the_process(engine: ProcessEngine) -> None:
    """The last test of the module's engine."""
    pid, recorder = engine._process.pid, Recorder()
    long = GenerateRequest(BASE_ID, (1, 2), params=replace(ENDLESS, n=1024), **recorder.listeners())
    ticket = engine.submit(long)
    assert recorder.stepped.wait(60)
    assert engine.stop(drain=0.0, patience=30.0)
    with pytest.raises(Unavailable, match="shutting down"):
        ticket.result(0)
    assert recorder.ends == [(2, len(recorder.deltas))]
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(Unavailable, match="shutting down"):
        engine.submit(long)


@pytest.mark.long
def test_a_killed_server_takes_its_process_with_it(tiny_base_dir: Path, tmp_path: Path) -> None:
    with one_server(tmp_path / "data", write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})) as server:
        [process] = [pid for pid in children(server.process.pid) if PROGRAM in cmdline(pid)]
        server.end(signal.SIGKILL)
        until(lambda: not cmdline(process), "its end")


def children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def cmdline(pid: int) -> str:
    """The command of a process; empty once it is gone, or a zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def test_a_start_that_fails_says_why_and_leaves_no_process(world: World) -> None:
    plan = plan_of(world.runtime.settings)
    gone = plan.model_copy(update={"blobs": plan.blobs.model_copy(update={"folder": Path("/no/blobs")})})
    engine = ProcessEngine(world.runtime.bases.allowed, gone)
    with pytest.raises(Unavailable, match="/no/blobs"):
        engine.start([BASE_ID]).result(120)
    engine.stop(drain=0.0, patience=10.0)
    assert engine._process is None
