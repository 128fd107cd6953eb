"""Prompts wait less for streams of keys that see the same namespaces, and nobody else's stream waits for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.request import Request
from service.engine.scheduler import Scheduler
from service.engine.step_times import GAP_SECONDS, MIN_TOKENS
from tests.service.engine.simulation import Simulation, drain, generate, scheduler_of, score

ALONE, TOKEN = 0.02, 0.001
"""Seconds of a step of streams alone, and of a token beside them."""


def streaming(streams: int, *, tokens: int = 2048, alone: float = ALONE) -> tuple[Scheduler, Simulation]:
    """A scheduler with so many streams of one key, whose pace is known."""
    scheduler = scheduler_of(rows=24, tokens=tokens)
    scheduler.step_times.beside_decodes("b", tokens)
    scheduler.step_times.record("b", alone, decodes=1, prefills=0)
    scheduler.step_times.record("b", TOKEN, decodes=0, prefills=1)
    simulation = Simulation(scheduler)
    scheduler.add([generate(1, tokens=99, namespace="k") for _ in range(streams)])
    simulation.step()
    return scheduler, simulation


@given(
    st.integers(1, 4), st.integers(1, 20), st.integers(1, 60), st.integers(4, 400), st.floats(0.001, 2 * GAP_SECONDS)
)
def test_a_step_takes_as_long_as_the_gap_or_twice_as_long_as_alone(
    streams: int, prompts: int, length: int, tokens: int, alone: float
) -> None:
    scheduler, simulation = streaming(streams, tokens=tokens, alone=alone)
    scheduler.add([generate(length, namespace="k") for _ in range(prompts)])
    beside = simulation.advance().tokens - streams
    assert beside <= max(MIN_TOKENS, tokens)
    assert alone + beside * TOKEN <= max(GAP_SECONDS, 2 * alone, alone + MIN_TOKENS * TOKEN) + 1e-9
    allowed = max(MIN_TOKENS, min(tokens, int(max(GAP_SECONDS - alone, alone) / TOKEN)))
    assert beside == min(allowed, prompts * length)
    drain(simulation)


@pytest.mark.parametrize(
    "other",
    [
        generate(1, tokens=99, namespace="l"),
        generate(1, tokens=99, namespace=None),
        generate(1, tokens=99, namespace="k", base="c"),
        score(9_999),
    ],
    ids=["of another key", "of nobody", "on another base model", "a text to score"],
)
@pytest.mark.parametrize("runs", [False, True])
def test_where_anybody_else_has_work_streams_keep_their_pace(other: Request, runs: bool) -> None:
    scheduler, simulation = streaming(1)
    if runs:
        scheduler.add([other])
        simulation.step()
    scheduler.add([generate(20, namespace="k") for _ in range(10)])
    if not runs:
        scheduler.add([other])
    steps = [simulation.advance() for _ in range(3)]
    assert all(step.tokens <= ALONE / TOKEN + 6 for step in steps), "and six newest ones"


def test_before_anything_was_measured_prompts_of_one_key_take_the_same_part_of_a_step() -> None:
    scheduler = scheduler_of(rows=24, tokens=400)
    assert scheduler.step_times.beside_decodes("b", 400, same_namespaces=True) == 0
    assert (
        scheduler.step_times.beside_decodes("b", 400, same_namespaces=True)
        == scheduler.step_times.beside_decodes("b", 400)
        == 100
    )
