"""Every request tells once what it took, however it ends: whole, cancelled, refused, failed, or with the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.base_model import LoadedBase
from registry.errors import Busy, InvalidPrompt
from service.engine import EngineLimits, GenerateRequest, ScoreRequest
from service.engine.engine import Engine
from tests.service.engine.stepping import greedy, run
from tests.service.loaded_bases import LoadedBases

PROMPT = (0, 40, 41, 42)


Told = list[tuple[int, ...]]
"""Tokens read and written, of each request that ended."""


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def engine(base: LoadedBase) -> Engine:
    return Engine(LoadedBases(base), EngineLimits(max_requests=2))


def generate(told: Told, tokens: int = 6, **more: object) -> GenerateRequest:
    return GenerateRequest("tiny", PROMPT, params=greedy(tokens, **more), on_end=lambda *counts: told.append(counts))


def test_what_is_whole_tells_what_its_answer_says(engine: Engine, told: Told) -> None:
    ticket = engine.submit(generate(told, n=3))
    ticket.add_done_callback(lambda _: told.append((-1, -1)))
    run(engine)
    written = sum(len(choice.token_ids) for choice in ticket.result(0).choices)
    assert told == [(len(PROMPT), written), (-1, -1)], "before anybody has the answer"


def test_scored_windows_are_read(engine: Engine, told: Told) -> None:
    engine.submit(ScoreRequest("tiny", (PROMPT, PROMPT[:2]), on_end=lambda *counts: told.append(counts)))
    run(engine)
    assert told == [(6, 0)]


def test_what_is_cancelled_tells_what_was_computed(engine: Engine, told: Told) -> None:
    ticket = engine.submit(generate(told, 40))
    for _ in range(3):
        engine.step()
    ticket.cancel()
    run(engine)
    assert told == [(len(PROMPT), 3)]


def test_what_never_began_took_nothing(engine: Engine, told: Told) -> None:
    engine.submit(generate(told)).cancel()
    run(engine)
    assert told == [(0, 0)]


def test_what_is_refused_took_nothing(engine: Engine, told: Told) -> None:
    with pytest.raises(InvalidPrompt):
        engine.submit_all([generate(told), replace(generate(told), prompt=())])
    assert told == [(0, 0)] * 2
    engine.submit_all([generate(told)] * 2)
    with pytest.raises(Busy):
        engine.submit(generate(told))
    assert told == [(0, 0)] * 3
    engine.stop(drain=0)
    assert told == [(0, 0)] * 5
