"""The memory of keys and values, adapters and their stacked copies stays within the engine's limits."""

from __future__ import annotations

import numpy as np
import pytest

from registry.adapters import create, paper_config
from registry.base_model import LoadedBase, load_base
from registry.spec import BaseEntry
from service.engine import EngineLimits, GenerateRequest, LoadableAdapter
from service.engine.engine import Engine
from service.engine.kv_budget import MIN_ROW_POSITIONS
from service.engine.runner import Runner
from tests.service.engine.stepping import greedy, run, tokens_of
from tests.service.loaded_bases import LoadedBases
from tests.tiny_models import build_tiny_base

CONFIG = paper_config("bapna_firat", bottleneck=4)
WEIGHTS = 1000
"""Bytes that the base model is said to take."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> LoadedBase:
    folder = build_tiny_base(tmp_path_factory.mktemp("held"), model_type="llama", max_position_embeddings=256)
    return load_base(BaseEntry(id="base", source=str(folder)))


@pytest.fixture(scope="module")
def handles(base: LoadedBase) -> list[LoadableAdapter]:
    states = [create(CONFIG, base.shape, seed=number).state_dict() for number in range(6)]
    size = sum(tensor.numel() * 4 for tensor in states[0].values())
    return [LoadableAdapter(f"sha256:{n}", CONFIG, lambda state=state: state, size) for n, state in enumerate(states)]  # type: ignore[misc]


@pytest.fixture(scope="module")
def expected(base: LoadedBase, handles: list[LoadableAdapter]) -> list[tuple[int, ...]]:
    """The tokens that each adapter generates alone."""
    return [tokens_of(Engine(LoadedBases(base)), generation(adapter))[0] for adapter in handles]


def runner_of(engine: Engine) -> Runner:
    return engine._bases.peek("base")


def kv_bytes(engine: Engine) -> int:
    """Bytes of all tensors of keys and values, and of cached prefixes, counted in them."""
    runner = runner_of(engine)
    slabs = runner.kv_cache._slabs.values()
    rows = sum(states.nbytes for slab in slabs for states in slab.layers.values())
    return rows + sum(copied.buffer.nbytes for copied in runner._prefixes.values())


@pytest.mark.parametrize("rows", [8, 40])
def test_keys_and_values_take_what_they_may_and_no_more(base: LoadedBase, rows: int) -> None:
    """Many short rows come and go, long ones take their place; a slab's spare rows are counted."""
    draw = np.random.default_rng(rows)
    each = MIN_ROW_POSITIONS * Engine(LoadedBases(base))._position_bytes("base")
    engine = Engine(LoadedBases(base), EngineLimits(kv_bytes=rows * each, max_running=64))
    spare = 0
    for number in range(60):
        length = int(draw.integers(2, 40 if number % 3 else 120))
        prompt = tuple(draw.integers(1, 200, length).tolist())
        tokens = int(draw.integers(1, 90 - length // 2))
        engine.submit(GenerateRequest("base", prompt, params=greedy(tokens), namespace="one"))
        for _ in range(int(draw.integers(0, 6))):
            engine.step()
            assert kv_bytes(engine) <= rows * each
            spare = max(spare, runner_of(engine).kv_cache.spare_positions)
    assert (spare > 0) or rows < 40, "what is free is used for rows to come"
    run(engine)


@pytest.mark.parametrize("adapters", [3, 5, 14])
def test_adapters_and_their_stacks_take_what_bases_leave(
    base: LoadedBase, handles: list[LoadableAdapter], expected: list[tuple[int, ...]], adapters: int
) -> None:
    budget = WEIGHTS + adapters * handles[0].size_bytes
    engine = Engine(LoadedBases(base, bytes=WEIGHTS), EngineLimits(memory_bytes=budget))
    tickets = []
    stacked = 0
    for number in range(30):
        tickets.append(engine.submit(generation(handles[number % 6])))
        for _ in range(number % 4):
            engine.step()
            together = runner_of(engine).batched.bytes
            stacked = max(stacked, together)
            assert WEIGHTS + engine.counters()["adapter_bytes"] + together <= budget
    run(engine)
    assert [ticket.result(0).choices[0].token_ids for ticket in tickets] == [expected[n % 6] for n in range(30)]
    assert stacked > 0 or adapters < 4


def test_stacks_take_at_most_as_much_as_adapters_may(base: LoadedBase, handles: list[LoadableAdapter]) -> None:
    bank = 6 * handles[0].size_bytes
    engine = Engine(LoadedBases(base), EngineLimits(adapter_cache_bytes=bank))
    for number in range(30):
        engine.submit(generation(handles[number % 6], length=1 + number % 7))
        for _ in range(number % 4):
            engine.step()
            assert runner_of(engine).batched.bytes <= bank
    run(engine)
    assert runner_of(engine).batched.bytes > 0


def generation(adapter: LoadableAdapter, length: int = 3) -> GenerateRequest:
    return GenerateRequest("base", tuple(range(1, 1 + length)), adapter, greedy(9))
