"""Keys share the engine: who floods it slows others down by a known factor, and never shuts them out."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import Busy
from service.engine.fairness import MAX_OVERLOAD, RECENT_SECONDS, AdmissionControl, RecentKeys, remaining_tokens
from service.engine.request import Request
from service.engine.scheduler import Scheduler
from service.engine.step_times import GAP_SECONDS, MIN_TOKENS
from service.engine.steps import SequenceGroup
from service.engine.waiting_queue import KEY_PATIENCE_STEPS
from tests.service.engine.simulation import (
    Simulation,
    drain,
    generate,
    scheduler_of,
    score,
    simulation_after,
    simulation_of,
)

ROWS = 16


def flooded(*floods: Request) -> Simulation:
    """A scheduler with 16 rows that one key's requests keep busy."""
    simulation, _ = simulation_after(*floods, steps=5, max_queue=10_000, rows=ROWS, tokens=256)
    assert simulation.scheduler.generating == ROWS
    return simulation


def rows(scheduler: Scheduler) -> Counter[str | None]:
    return Counter(sequence.group.owner for sequence in scheduler._running if sequence.is_generation)


def steps_until_done(simulation: Simulation, group: SequenceGroup, most: int = 200) -> int:
    for number in range(most):
        simulation.step()
        if group.state.is_final:
            return number + 1
    raise AssertionError(f"{group} is not done after {most} steps")


@pytest.mark.parametrize("adapters", [1, 64], ids=["one adapter", "64 adapters"])
def test_a_small_request_of_another_key_is_answered_soon(adapters: int) -> None:
    """The attack: 255 prompts, 16 choices each, of 300 tokens; another key's 8 tokens waited for rows to end."""
    floods = [generate(n=16, tokens=300, adapter=str(number % adapters), owner="flood") for number in range(255)]
    simulation = flooded(*floods)
    [small] = simulation.add([generate(tokens=8, adapter="0", owner="small")])
    alone = Simulation(scheduler_of(rows=ROWS))
    [same] = alone.scheduler.add([generate(tokens=8, owner="small")])
    assert steps_until_done(simulation, small) <= steps_until_done(alone, same) + 3


def test_keys_that_wait_come_to_equal_parts_and_stay_there() -> None:
    simulation = flooded(*[generate(tokens=2000, owner="flood") for _ in range(40)])
    simulation.add([generate(tokens=2000, owner="other") for _ in range(40)])
    simulation.steps(KEY_PATIENCE_STEPS * ROWS)
    assert rows(simulation.scheduler) == {"flood": 8, "other": 8}
    running = set(simulation.scheduler._running)
    simulation.steps(100)
    assert set(simulation.scheduler._running) == running, "nobody is sent away any more"


def test_a_key_that_wants_less_than_its_part_leaves_the_rest_to_others() -> None:
    simulation = flooded(*[generate(tokens=2000, owner="flood") for _ in range(40)])
    simulation.add([generate(tokens=2000, owner="other") for _ in range(2)])
    simulation.steps(60)
    assert rows(simulation.scheduler) == {"flood": 14, "other": 2}


def test_texts_of_another_key_do_not_wait_for_all_of_a_flood() -> None:
    simulation, _ = simulation_after(
        *[score(*[32] * 20, owner="flood") for _ in range(200)], steps=5, max_queue=10_000, tokens=64
    )
    [small] = simulation.add([score(32, 32, owner="small")])
    assert steps_until_done(simulation, small) <= 2


@pytest.mark.parametrize(("other_owners", "step"), [((), 64), (("small",), 40)], ids=["alone", "in company"])
def test_a_step_of_texts_is_short_where_another_key_asked_lately(other_owners: tuple[str, ...], step: int) -> None:
    """A request that comes in the middle of a step waits for its end; eight steps of streams are 40 tokens here."""
    scheduler, seconds = scheduler_of(max_queue=10_000, tokens=64), 100.0
    scheduler.step_times.recent_keys = RecentKeys(lambda: seconds)
    scheduler.step_times.record("b", 5.0, decodes=1, prefills=0)
    scheduler.step_times.record("b", 10.0, decodes=0, prefills=10)
    scheduler.add([score(*[4] * 200, owner="flood")])
    simulation = Simulation(scheduler)
    for owner in other_owners:
        scheduler.add([generate(tokens=1, owner=owner)])
        simulation.step()
    assert simulation.advance().tokens == step
    seconds += RECENT_SECONDS + 1
    assert simulation.advance().tokens == 64, "nobody else has asked for long"


def test_prompts_of_a_flood_do_not_hold_up_anothers_first_token() -> None:
    """Long prompts that have begun take every token a step has beside the streams."""
    floods = [generate(length=5000, tokens=300, owner="flood") for _ in range(30)]
    simulation, _ = simulation_after(*floods, steps=20, max_queue=10_000, rows=ROWS, tokens=64)
    [small] = simulation.add([generate(length=8, tokens=1, owner="small")])
    assert steps_until_done(simulation, small) <= 4


# --- the queue ------------------------------------------------------------------------------------


def live(*requests: Request) -> list[SequenceGroup]:
    ids = iter(range(100_000))
    return [SequenceGroup.of(request, ids) for request in requests]


def test_tokens_that_are_left_are_those_of_all_rows() -> None:
    [group, open_ended, texts] = live(generate(length=10, n=3, tokens=5), generate(length=1, tokens=0), score(4, 6))
    assert (remaining_tokens(group), remaining_tokens(open_ended), remaining_tokens(texts)) == (45, 1, 10)


def test_who_floods_the_queue_does_not_shut_others_out() -> None:
    queue = AdmissionControl(10)
    groups = live(*[generate(owner="flood")] * 10)
    with pytest.raises(Busy, match="holds 10 requests, with 70 tokens to compute; its limit is 10 requests"):
        queue.check(groups, "flood", lambda _: 1)
    for _ in range(5):
        queue.check(groups, "other", lambda _: 1)
        groups += live(generate(owner="other"))
    with pytest.raises(Busy, match="15 requests, 5 of them of this key"):
        queue.check(groups, "other", lambda _: 1)
    queue.check(groups, "third", lambda _: 1)


def test_the_queue_has_an_end_for_any_number_of_keys() -> None:
    queue, groups = AdmissionControl(4), live(*[generate(owner="flood")] * 4)
    for number in range(4):
        queue.check(groups, f"key-{number}", lambda _: 1)
        groups += live(generate(owner=f"key-{number}"))
    assert len(groups) == MAX_OVERLOAD * 4
    with pytest.raises(Busy):
        queue.check(groups, "one-more", lambda _: 1)


def test_a_few_large_requests_fill_it_too() -> None:
    queue = AdmissionControl(256, max_tokens=1000)
    groups = live(generate(length=4, n=16, tokens=60, owner="flood"))
    token_counts: list[int] = []
    with pytest.raises(Busy, match="1024 tokens to compute; its limit is 256 requests or 1000 tokens"):
        queue.check(groups, "flood", lambda tokens: token_counts.append(tokens) or 9)
    assert token_counts == [1024], "the one there is has to end"
    queue.check(groups, "other", lambda _: 1)


LARGE = {
    "tokens": [score(2500, owner="large")],
    "choices": [generate(length=4, n=16, tokens=600, owner="large")],
    "requests": [generate(length=1, tokens=1, owner="large")] * 50,
}
"""Requests of one key that are more than twice the limit of 20 requests, or of 1000 tokens."""


@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE)
def test_requests_beyond_twice_the_limits_do_not_shut_other_keys_out(large: list[Request]) -> None:
    queue, groups = AdmissionControl(20, max_tokens=1000), live(*large)
    with pytest.raises(Busy):
        queue.check(groups, "large", lambda _: 1)
    for owner in ("small", None, "third"):
        queue.check(groups, owner, lambda _: 1)
        groups += live(generate(owner=owner))


def test_large_requests_of_several_keys_are_not_held_without_end() -> None:
    queue, groups = AdmissionControl(256, max_tokens=1000), []
    for number in range(MAX_OVERLOAD):
        queue.check(groups, f"key-{number}", lambda _: 1)
        groups += live(score(5000, owner=f"key-{number}"))
    with pytest.raises(Busy):
        queue.check(groups, "one-more", lambda _: 1)


def test_what_is_left_of_a_request_is_the_sum_of_its_choices_before_and_after_it_begins() -> None:
    simulation = simulation_of(rows=2)
    [group] = simulation.add([generate(n=5, tokens=7)])
    choices = [*group.waiting]
    assert remaining_tokens(group) == sum(choice.prompt_length + 7 - choice.computed for choice in choices) > 0
    simulation.step()
    assert group.running
    assert remaining_tokens(group) == sum(
        max(1, choice.prompt_length + 7 - choice.computed) for choice in (*group.waiting, *group.running)
    )


# --- the pace of streams beside prompts -----------------------------------------------------------


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
    "foreign_request",
    [
        generate(1, tokens=99, namespace="l"),
        generate(1, tokens=99, namespace=None),
        generate(1, tokens=99, namespace="k", base="c"),
        score(9_999),
    ],
    ids=["of another key", "of nobody", "on another base model", "a text to score"],
)
@pytest.mark.parametrize("runs", [False, True])
def test_where_anybody_else_has_work_streams_keep_their_pace(foreign_request: Request, runs: bool) -> None:
    scheduler, simulation = streaming(1)
    if runs:
        scheduler.add([foreign_request])
        simulation.step()
    scheduler.add([generate(20, namespace="k") for _ in range(10)])
    if not runs:
        scheduler.add([foreign_request])
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
