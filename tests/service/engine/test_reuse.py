"""Requests that take over what earlier ones left: they get what they get alone, and only of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.base_model import LoadedBase
from registry.spec import PrefixConfig
from service.engine import EngineLimits, GenerateRequest, LoadableAdapter, SamplingParams, Ticket
from service.engine.engine import Engine
from service.engine.kv_budget import row_capacity
from service.engine.kv_cache import KVCache
from service.engine.prefix_cache import BLOCK_SIZE
from service.engine.runner import ForwardResult, ForwardTask, Runner
from tests.service.engine.stepping import answered, greedy, run, started
from tests.service.engine.test_mixed import PARALLEL, configs_of, module_of
from tests.service.loaded_bases import LoadedBases

TOLERANCE = 1e-5
PLENTY = 2**22
PROMPT = tuple(range(5, 45))


def engine_of(base: LoadedBase, **limits: object) -> Engine:
    return Engine(LoadedBases(base), EngineLimits(**{"kv_bytes": PLENTY, **limits}))  # type: ignore[arg-type]


def ask(
    engine: Engine,
    prompt: Sequence[int],
    *,
    namespace: str | None = "a",
    adapter: LoadableAdapter | None = None,
    params: SamplingParams | None = None,
    base: str = "tiny",
) -> tuple[tuple[int, ...], int]:
    """The tokens of a request's first choice, and how many of its prompt were taken over."""
    request = GenerateRequest(base, tuple(prompt), adapter, params or greedy(4), namespace=namespace)
    [answer] = answered(engine, request)
    return answer.choices[0].token_ids, answer.reused


@dataclass(eq=False)
class World:
    """A base model, adapters of every structure, and an engine that keeps nothing, in which requests run alone."""

    base: LoadedBase
    adapters: list[LoadableAdapter | None]
    alone: Engine

    def check(self, request: GenerateRequest, ticket: Ticket) -> None:
        [reference] = answered(self.alone, request)
        for choice, expected in zip(ticket.result(0).choices, reference.choices, strict=True):
            assert choice.token_ids == expected.token_ids
            assert choice.token_logprobs == pytest.approx(expected.token_logprobs, abs=TOLERANCE, rel=TOLERANCE)


@pytest.fixture(scope="module", params=("gpt2", "mistral-window-4", "qwen3-alternating"))
def world(request: pytest.FixtureRequest, bases: Callable[[str], LoadedBase]) -> World:
    base = bases(request.param)
    adapters: list[LoadableAdapter | None] = [None]
    for number, config in enumerate(configs_of(base)):
        tensors = module_of(base, config, seed=number).state_dict()
        adapters.append(LoadableAdapter(f"sha256:{number:064x}", config, lambda tensors=tensors: tensors))  # type: ignore[misc]
    return World(base, adapters, Engine(LoadedBases(base)))


class Conversations:
    """Prompts that begin as earlier ones did, or go on where earlier answers ended, in two namespaces."""

    def __init__(self, world: World, draw: np.random.Generator) -> None:
        self.world, self.draw = world, draw
        self.adapters = [world.adapters[n] for n in draw.choice(len(world.adapters), size=3, replace=False)]
        self.texts = [self.tokens(40) for _ in range(2)]

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.draw.integers(1, 300, size=count).tolist())

    def request(self) -> GenerateRequest:
        beginning = self.texts[self.draw.integers(len(self.texts))][: self.draw.integers(1, 45)]
        adapter = self.adapters[self.draw.integers(len(self.adapters))]
        params = SamplingParams(
            max_tokens=int(self.draw.integers(0, 5)),
            temperature=0.0,
            logprobs=0,
            n=int(self.draw.integers(1, 3)),
            prompt_logprobs=bool(self.draw.random() < 0.1),
        )
        namespace = [None, "a", "b"][self.draw.integers(3)]
        prompt = (*beginning, *self.tokens(int(self.draw.integers(1, 6))))
        return GenerateRequest("tiny", prompt, adapter, params, namespace=namespace)


def watch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before every pass: what is kept is what is counted, and all of it is within the limit."""
    real, limit = Runner.run, engine._kv_budget.limit

    def checked(runner: Runner, tasks: Sequence[ForwardTask]) -> list[ForwardResult]:
        if runner.base is engine.base("tiny"):
            prefix_bytes = sum(copied.buffer.nbytes for copied in runner._prefixes.values())
            assert prefix_bytes == engine.counters()["kept_bytes"] <= engine.counters()["kv_bytes"]
            assert limit is None or engine.counters()["kv_bytes"] <= limit
        return real(runner, tasks)

    monkeypatch.setattr(Runner, "run", checked)


@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), st.integers(2, 8))
def test_what_is_taken_over_changes_nothing_whatever_joins_leaves_and_goes(world: World, seed: int, rows: int) -> None:
    draw = np.random.default_rng(seed)
    each = world.alone._position_bytes("tiny")
    engine = engine_of(world.base, kv_bytes=rows * row_capacity(1) * each, max_running=3, max_step_tokens=40)
    submitted: list[tuple[GenerateRequest, Ticket]] = []
    talk = Conversations(world, draw)
    with pytest.MonkeyPatch.context() as patch:
        watch(engine, patch)
        for _ in range(20):
            request = talk.request()
            submitted.append((request, engine.submit(request)))
            if draw.random() < 0.2:
                submitted[draw.integers(len(submitted))][1].cancel()
            for _ in range(draw.integers(0, 8)):
                engine.step()
            ended = [pair for pair in submitted if pair[1].done() and not pair[1].cancelled()]
            if ended and draw.random() < 0.5:  # somebody answers
                previous, ticket = ended[-1]
                talk.texts.append((*previous.prompt, *ticket.result(0).choices[0].token_ids)[:44])
        run(engine)
    for request, ticket in submitted:
        if not ticket.cancelled():
            world.check(request, ticket)
            check_reuse(request, ticket, [submitted_request for submitted_request, _ in submitted])
    counters = engine.counters()
    assert counters["kv_bytes"] == counters["kept_bytes"]
    assert counters["prompt_tokens_reused_total"] >= sum(t.result(0).reused for _, t in submitted if not t.cancelled())


def check_reuse(request: GenerateRequest, ticket: Ticket, requests: Sequence[GenerateRequest]) -> None:
    """Assert that tokens are reused only from requests of equal beginning, base model, adapter and namespace."""
    reused = ticket.result(0).reused
    assert reused == 0 or BLOCK_SIZE <= reused < len(request.prompt)
    if reused:
        assert request.namespace is not None
        assert not request.params.prompt_logprobs
        assert any(
            candidate is not request
            and candidate.namespace == request.namespace
            and candidate.adapter is request.adapter
            and candidate.prompt[:BLOCK_SIZE] == request.prompt[:BLOCK_SIZE]
            for candidate in requests
        )


def test_a_second_request_of_every_structure_computes_what_it_does_not_share(world: World) -> None:
    prompt = tuple(np.random.default_rng(0).integers(1, 300, size=40).tolist())
    engine, total = engine_of(world.base), 0
    for adapter in world.adapters:
        params = greedy(6, logprobs=0)
        computed = engine.counters()["prompt_tokens_total"]
        answer, reused = ask(engine, prompt, adapter=adapter, params=params)
        assert reused == 0, "every adapter has its own"
        request = GenerateRequest("tiny", (*prompt, *answer, 7, 8), adapter, params, namespace="a")
        ticket = engine.submit(request)
        run(engine)
        world.check(request, ticket)
        reusable = len(prompt) + len(answer) - 1  # the last token was drawn and not computed
        total += reusable
        assert ticket.result(0).reused == reusable
        assert engine.counters()["prompt_tokens_total"] - computed == 40 + 3
    counters = engine.counters()
    assert counters["prompt_tokens_reused_total"] == total
    assert counters["kept_texts"] == len(world.adapters), "the longer text stands in for the one it begins with"


# --- who shares -----------------------------------------------------------------------------------


def test_a_namespace_has_its_own_unless_the_operator_shares_with_all_or_none(base: LoadedBase) -> None:
    namespace_alone, all_keys, off = [0, 0, 39, 0, 0], [0, 39, 39, 0, 0], [0, 0, 0, 0, 0]
    for limits, reused in (
        ({}, namespace_alone),
        ({"share_prompts": "all"}, all_keys),
        ({"share_prompts": "off"}, off),
    ):
        engine = engine_of(base, **limits)
        assert [ask(engine, PROMPT, namespace=namespace)[1] for namespace in ("a", "b", "a", None, None)] == reused


def test_a_base_model_that_runs_one_by_one_keeps_nothing(base: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.engine.checked_runner", lambda loaded: Runner(loaded, packed=False))
    engine = engine_of(base)
    answers = [ask(engine, PROMPT) for _ in range(2)]
    assert answers[0] == answers[1]
    assert engine.counters()["kept_texts"] == answers[1][1] == 0


def test_what_several_choices_take_over_counts_once(base: LoadedBase) -> None:
    engine = engine_of(base)
    ask(engine, PROMPT, params=greedy(2, n=3))
    assert engine.counters()["kept_texts"] == 1
    assert ask(engine, PROMPT, params=greedy(2, n=3))[1] == 39
    assert engine.counters()["prompt_tokens_reused_total"] == 39


# --- what stays -----------------------------------------------------------------------------------


def test_a_started_engine_keeps_it_while_there_is_nothing_to_do(base: LoadedBase) -> None:
    request = GenerateRequest("tiny", PROMPT, params=greedy(3), namespace="a")
    with started(engine_of(base)) as engine:
        assert [engine.submit(request).result(30).reused for _ in range(3)] == [0, 39, 39]
    assert engine.counters()["kv_bytes"] == engine.counters()["kept_bytes"] > 0


def test_a_base_model_that_is_dropped_takes_it_along(base: LoadedBase) -> None:
    engine = Engine(LoadedBases(base, bytes=10), EngineLimits(kv_bytes=PLENTY, memory_bytes=15))
    assert ask(engine, PROMPT)[1] == 0
    ask(engine, (1, 2, 3), base="other", namespace=None)
    assert engine.loaded_bases() == ("other",)
    assert engine.counters()["kept_bytes"] == 0
    assert ask(engine, PROMPT)[1] == 0


def test_a_row_of_nan_is_not_kept_whoever_gave_it_up(base: LoadedBase) -> None:
    broken = {name: torch.full_like(t, float("nan")) for name, t in module_of(base, PARALLEL, 3).state_dict().items()}
    adapter = LoadableAdapter("sha256:" + "a" * 64, PARALLEL, lambda: broken)
    engine = engine_of(base, max_step_tokens=30)
    failed = engine.submit(GenerateRequest("tiny", PROMPT, adapter, greedy(3), namespace="a"))
    run(engine)
    assert failed.exception(0) is not None
    cancelled = engine.submit(GenerateRequest("tiny", PROMPT, adapter, greedy(3), namespace="a"))
    engine.step()
    cancelled.cancel()
    run(engine)
    counters = engine.counters()
    assert (counters["kept_texts"], counters["kv_bytes"]) == (0, 0)
    assert (counters["requests_failed_total"], counters["requests_cancelled_total"]) == (1, 1)


def test_a_pass_that_fails_before_anything_is_taken_over_leaves_nothing(
    base: LoadedBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(base)
    answer = ask(engine, PROMPT)[0]

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run", Mock(side_effect=RuntimeError("no memory")))
        ticket = engine.submit(GenerateRequest("tiny", (*PROMPT, *answer, 9), params=greedy(3), namespace="a"))
        run(engine)
    assert ticket.exception(0) is not None
    assert engine.counters()["kept_texts"] == 1
    assert ask(engine, PROMPT) == (answer, 39)


# --- copies ---------------------------------------------------------------------------------------


STATES = torch.arange(2 * 9 * 3, dtype=torch.float32).reshape(2, 9, 3)


def filled(states: torch.Tensor) -> KVCache:
    memory = KVCache()
    row = memory.reserve("a", states.shape[1])
    for layer in range(2):
        row.fill(layer, torch.cat([states + layer, -states]))
    row.length = states.shape[1]
    return memory


def test_a_part_is_copied_out_and_in_and_takes_no_more_than_its_bytes() -> None:
    memory = filled(STATES)
    copied = memory.copy_out("a", 7)
    memory.release("a")
    assert copied.buffer.numel() == 2 * 2 * 2 * 7 * 3
    row = memory.reserve("b", 100)
    assert row.slab.capacity == 128
    copied.write(row, 5)
    for layer in range(2):
        keys, values = row.read(layer, 128).chunk(2)
        assert torch.equal(keys[:, :5], STATES[:, :5] + layer)
        assert torch.equal(values[:, :5], -STATES[:, :5])
        assert not keys[:, 5:].any()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_there_or_no_number_is_not_copied(wrong: float) -> None:
    states = STATES.clone()
    states[1, 6, 2] = wrong
    memory = filled(states)
    assert memory.copy_out("a", 7) is None
    assert memory.copy_out("a", 6) is not None
    assert memory.copy_out("a", 10) is None
    assert memory.copy_out("b", 1) is None


def test_a_prefix_is_kept_with_the_text_behind_it(base: LoadedBase) -> None:
    config = PrefixConfig(length=5)
    tensors = module_of(base, config, 1).state_dict()
    adapter = LoadableAdapter("sha256:" + "b" * 64, config, lambda: tensors)
    engine = engine_of(base)
    first = ask(engine, PROMPT, adapter=adapter)
    assert engine.counters()["kept_bytes"] == (5 + 43) * engine._position_bytes("tiny")
    assert ask(engine, PROMPT, adapter=adapter) == (first[0], 39)
