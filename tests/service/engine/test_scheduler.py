"""The scheduler's laws: limits are never exceeded, nobody starves, every request ends in exactly one final state."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.errors import Busy, Unavailable
from registry.spec import PrefixConfig
from service.engine.fairness import MAX_OVERLOAD, AdmissionControl
from service.engine.kv_budget import MIN_ROW_POSITIONS
from service.engine.request import GenerateRequest, LoadableAdapter, Request, ScoreRequest, State
from service.engine.scheduler import Scheduler
from service.engine.step_times import MIN_TOKENS, PROBE_INTERVAL, StepTimes
from service.engine.steps import TURN_TOKENS, SequenceGroup
from service.engine.waiting_queue import PATIENCE_STEPS
from tests.service.engine.simulation import (
    REQUESTS,
    Simulation,
    drain,
    generate,
    scheduler_of,
    score,
    simulation_after,
    simulation_of,
    steps_of,
)

PREFIXED = LoadableAdapter("p", PrefixConfig(length=8), dict)

actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), REQUESTS),
        st.tuples(st.just("add"), st.builds(generate, adapter=st.sampled_from("-abc"), tokens=st.integers(20, 60))),
        st.tuples(st.just("step"), st.integers(1, 20)),
        st.tuples(st.just("cancel"), st.integers(0, 100)),
        st.tuples(st.just("fail"), st.integers(0, 100)),
    ),
    max_size=40,
)
limits = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 64),
        "rows": st.integers(1, 5),
        "kv": st.none() | st.integers(1, 6).map(lambda rows: rows * MIN_ROW_POSITIONS),
    }
)
rooms = st.none() | st.integers(0, 3)


@settings(max_examples=60)
@given(actions, st.integers(1, 6) | st.just(99), limits, st.none() | st.integers(1, 40), rooms)
def test_laws_hold_whatever_comes(
    script: list[tuple[str, object]],
    max_queue: int,
    limit: dict[str, int],
    pace: int | None,
    adapter_bytes: int | None,
) -> None:
    scheduler = scheduler_of(max_queue=max_queue, pace=pace, **limit)
    simulation = Simulation(scheduler, adapter_bytes=adapter_bytes)
    groups: list[SequenceGroup] = []
    for action, value in script:
        if action == "add":
            full, owner = scheduler.depth >= max_queue, value.owner  # type: ignore[attr-defined]
            live_owners = [group.owner for group in scheduler.groups()]
            share = max_queue / len({*live_owners, owner})
            try:
                groups += scheduler.add([value])  # type: ignore[list-item]
                assert not full or live_owners.count(owner) < share
            except Busy:
                assert full
                assert live_owners.count(owner) >= share or len(live_owners) >= MAX_OVERLOAD * max_queue
        elif action == "step":
            for _ in range(value):  # type: ignore[call-overload]
                assert simulation.step() is not None or scheduler.depth == 0, "somebody waits, and nobody runs"
        elif groups:
            group = groups[value % len(groups)]  # type: ignore[operator]
            if action == "cancel":
                group.ticket.cancel()
            else:
                simulation.ended += scheduler.fail([group, group], Unavailable("gone"))
        assert scheduler.depth <= MAX_OVERLOAD * max_queue
    drain(simulation)
    assert scheduler.depth == scheduler.generating == 0
    assert scheduler._kv_budget.bytes == scheduler.prefixes.bytes, "only what is kept of ended ones takes room"
    assert scheduler.sequences_with_rows() == {}
    assert sorted(map(id, simulation.ended)) == sorted(map(id, groups)), "each request ends exactly once"
    for group in groups:
        assert group.state.is_final
        assert (group.state is State.FAILED) == (group.error is not None)
        assert not group.waiting
        assert not group.running
        if group.state is State.FINISHED:
            assert group.ticket.rows_done == group.ticket.rows


@given(st.lists(REQUESTS, min_size=1, max_size=10), limits, rooms)
def test_everything_that_is_asked_for_is_computed_once(
    requests: list[Request], limit: dict[str, int], adapter_bytes: int | None
) -> None:
    simulation = simulation_of(**limit, adapter_bytes=adapter_bytes)
    groups = simulation.add(requests)
    drain(simulation)
    for group, request in zip(groups, requests, strict=True):
        assert group.state is State.FINISHED
        if isinstance(request, GenerateRequest):
            counts = sorted(count for sequence, count in simulation.generated.items() if sequence.group is group)
            assert counts == [request.params.max_tokens or 0] * request.params.n
        else:
            scored = sorted(count for sequence, count in simulation.scored.items() if sequence.group is group)
            assert scored == sorted(map(len, request.windows))


def test_many_adapters_share_a_step() -> None:
    steps = steps_of(*(generate(adapter=str(number)) for number in range(16)), rows=16)
    assert [len(step.segments) for step in steps] == [16] * 4, "a prompt and three more tokens each"


def test_a_long_generation_does_not_hold_up_a_score_nor_the_other_way_round() -> None:
    simulation, [long] = simulation_after(generate(tokens=1000), tokens=64)
    [corpus] = simulation.add([score(*[8] * 500)])
    [quick] = simulation.add([score(2, adapter="a")])
    [short] = simulation.add([generate(adapter="b", tokens=2)])
    for _ in range(8):
        assert long in simulation.advance().groups
    assert quick.state is State.FINISHED
    assert short.state is State.FINISHED
    assert long.state is corpus.state is State.RUNNING
    assert sum(sequence.group is corpus for sequence in simulation.scored) >= 8


def test_a_stream_is_in_every_step_of_its_base_model_and_bases_take_turns() -> None:
    simulation = simulation_of()
    [stream] = simulation.add([generate(tokens=30)])
    [stream_on_c] = simulation.add([generate(tokens=30, base="c")])
    simulation.add([generate(adapter="a", tokens=30), *[score(*[4] * 50, adapter=str(i)) for i in range(9)]])
    for _ in range(20):
        first, second = simulation.advance().groups, simulation.advance().groups
        assert (stream in first, stream_on_c in second) == (True, True)


# --- turns ----------------------------------------------------------------------------------------


def test_one_prompt_of_each_adapter_in_turn() -> None:
    simulation = simulation_of(rows=1)
    groups = simulation.add([generate(adapter=name, tokens=2) for name in "aaabb"])
    drain(simulation)
    assert [groups.index(group) for group in simulation.ended] == [0, 3, 1, 4, 2]


@pytest.mark.parametrize("request_", [generate(adapter="b", tokens=5), score(3, adapter="b")], ids=["prompt", "text"])
def test_an_adapter_without_room_beside_others_has_its_turn(request_: Request) -> None:
    simulation, long = simulation_after(*[generate(adapter="a", tokens=100) for _ in range(2)], adapter_bytes=1, rows=4)
    [waiting] = simulation.add([request_])
    simulation.steps(PATIENCE_STEPS + 6)
    assert waiting.state is State.FINISHED
    drain(simulation)
    assert all(group.state is State.FINISHED for group in long)


@pytest.mark.parametrize(("length", "budget", "tokens"), [(13, 12, 9), (300, 100, 40)])
def test_long_prompts_of_two_adapters_do_not_preempt_each_other_for_ever(length: int, budget: int, tokens: int) -> None:
    simulation, _ = simulation_after(
        *[generate(length, adapter="a", tokens=tokens, owner="x") for _ in range(3)],
        tokens=budget,
        rows=3,
        adapter_bytes=1,
    )
    simulation.add([generate(length, adapter="b", tokens=tokens, owner="y")])
    prefill_steps = math.ceil(length / budget) + 1
    drain(simulation, limit=4 * math.ceil(tokens / TURN_TOKENS) * (prefill_steps + TURN_TOKENS))


def test_requests_without_an_adapter_do_not_wait_for_the_room_of_an_adapter() -> None:
    simulation, _ = simulation_after(generate(2000, adapter="a", owner="x"), tokens=10, adapter_bytes=1)
    simulation.add([generate(adapter="b", owner="x")])
    simulation.steps(PATIENCE_STEPS + 2)
    [bare] = simulation.add([generate(base="c", owner="z")])
    simulation.steps(4)
    assert bare.state is not State.WAITING


def test_a_text_without_memory_keeps_no_room_for_its_adapter() -> None:
    """Memory is reserved for the text of key y; that of key z has another adapter and comes first in turn."""

    def prefixed(adapter: str, owner: str) -> ScoreRequest:
        return ScoreRequest("b", ((1,) * 20,), LoadableAdapter(adapter, PrefixConfig(length=8), dict, 1), owner=owner)

    simulation, groups = simulation_after(
        generate(20, tokens=40, owner="x"), tokens=30, adapter_bytes=1, kv=MIN_ROW_POSITIONS
    )
    groups += simulation.add([score(3, owner="y"), prefixed("a", "y")])
    simulation.steps(PATIENCE_STEPS + 4)
    groups += simulation.add([prefixed("b", "z")])
    drain(simulation)
    assert all(group.state is State.FINISHED for group in groups)


@pytest.mark.parametrize("pieces", range(4, 14))
def test_what_gave_way_takes_no_tokens_from_who_has_its_room(pieces: int) -> None:
    """The rest of a prompt leaves too few tokens for the text, whose adapter then takes the prompt's room."""
    simulation = simulation_of(tokens=16, adapter_bytes=1)
    groups = simulation.add([generate(16 * pieces + 14, adapter="a"), score(*[16] * 50)])
    groups += simulation.add([score(3, adapter="b")])
    while simulation.scheduler.depth:
        assert simulation.step() is not None, "somebody waits, and nobody runs"
    assert all(group.state is State.FINISHED for group in groups)


def test_a_text_that_runs_whole_has_its_room_until_the_step_has_run() -> None:
    simulation, _ = simulation_after(*[generate(adapter=name, tokens=60) for name in "ab"], tokens=16, adapter_bytes=2)
    simulation.add([score(3, adapter=name) for name in "cdef"])
    drain(simulation)  # which looks at the adapters of every step


def test_nobody_gives_way_to_an_adapter_that_is_not_loaded_yet() -> None:
    simulation, streams = simulation_after(
        *[generate(adapter="a", tokens=100) for _ in range(4)],
        steps=3,
        adapter_bytes=1,
        loaded=lambda group: group.digest != "b",
        rows=4,
    )
    [cold] = simulation.add([generate(adapter="b", tokens=5)])
    for _ in range(2 * PATIENCE_STEPS):
        assert simulation.advance().groups == streams
    simulation.loaded = lambda _work: True
    assert cold in simulation.advance().groups


def test_those_who_give_way_are_of_one_adapter_and_nobody_else() -> None:
    simulation, _ = simulation_after(
        generate(adapter="a", tokens=100), *[generate(tokens=100) for _ in range(4)], steps=3, adapter_bytes=1, rows=9
    )
    simulation.add([generate(adapter="b", tokens=50)])
    for _ in range(PATIENCE_STEPS + 1):
        step = simulation.advance()
    assert sum(group.digest is None for group in step.groups) == 4


def test_each_base_model_has_its_own_turns_of_prompts_and_texts() -> None:
    simulation = simulation_of(max_queue=999, tokens=8, rows=99)
    for base in "bc":
        simulation.add([generate(8, tokens=0, base=base) for _ in range(50)])
    texts = simulation.add([ScoreRequest(base, ((1,) * 8,) * 3) for base in "bc"])
    simulation.steps(14)
    assert [text.state for text in texts] == [State.FINISHED] * 2


def test_prompts_and_texts_have_the_first_choice_in_turn() -> None:
    simulation = simulation_of(tokens=16, rows=99)
    simulation.add([score(*[16] * 50)])
    simulation.add([generate(16, tokens=0) for _ in range(50)])
    requests = [simulation.advance().groups[0].request for _ in range(8)]
    assert [isinstance(request, GenerateRequest) for request in requests] == [True, False] * 4


SHORT = st.builds(  # a prompt and its answer fit into the smallest row
    generate,
    st.integers(1, 30),
    n=st.integers(1, 3),
    adapter=st.just("a"),
    tokens=st.integers(1, MIN_ROW_POSITIONS - 31),
)


@given(
    flood=st.lists(SHORT, min_size=1, max_size=12),
    begun=st.integers(0, 40),
    prompt=st.integers(1, 60),
    rows=st.integers(2, 6),
    tokens=st.sampled_from([MIN_TOKENS, 64, 256]),
    kv=st.none() | st.integers(2, 9).map(lambda number: number * MIN_ROW_POSITIONS),
)
def test_the_first_token_of_an_adapter_waits_a_known_number_of_steps_beside_one_that_floods(
    flood: list[GenerateRequest], begun: int, prompt: int, rows: int, tokens: int, kv: int | None
) -> None:
    """PATIENCE steps for a row and its memory, one that is the streams' alone, two of which others had the first
    choice, and as many as it takes to compute its prompt and those begun before it, `MIN_TOKENS` tokens or more a step.
    """
    simulation, _ = simulation_after(*flood * 5, steps=begun, max_queue=10_000, tokens=tokens, rows=rows, kv=kv)
    [group] = simulation.add([generate(prompt, adapter="b", tokens=3)])
    for _ in range(PATIENCE_STEPS + 3 + math.ceil((prompt + 30 * (rows - 1)) / MIN_TOKENS)):
        simulation.add(flood)
        simulation.step()
    assert any(sequence.group is group for sequence in simulation.generated)


def test_an_adapter_takes_no_memory_that_would_not_be_enough() -> None:
    """Streams that gave their memory up would start again for nothing, step after step."""
    simulation, streams = simulation_after(
        *[generate(adapter="a", tokens=60) for _ in range(4)], steps=3, kv=4 * MIN_ROW_POSITIONS, rows=9
    )
    [large] = simulation.add([generate(4 * MIN_ROW_POSITIONS, adapter="b", tokens=0)])
    for _ in range(2 * PATIENCE_STEPS):
        assert simulation.advance().groups == streams
    drain(simulation)
    assert large.state is State.FINISHED


@pytest.mark.parametrize(
    ("length", "token", "pooled", "base"),
    [(20, 1 / 3, True, "c"), (700, 1 / 300, False, "c"), (2048, 1 / 3000, True, "b"), (8192, 1 / 3, False, "b")],
)
def test_a_scoring_job_makes_no_step_larger_than_the_pace_allows(
    length: int, token: float, pooled: bool, base: str
) -> None:
    """50,000 tokens to score or embed, on the base model of the streams or on another, between whose steps they wait.

    A step of streams takes a second, a token beside them `token` seconds, give or take.
    """
    scheduler = scheduler_of(tokens=2048, rows=4)
    simulation, draw, allowed = Simulation(scheduler), random.Random(length), list[int]()
    real = scheduler.step_times._tokens_per_decode_step
    scheduler.step_times._tokens_per_decode_step = lambda *of: allowed.append(real(*of)) or allowed[-1]  # type: ignore[method-assign,func-returns-value]
    streams = scheduler.add([generate(adapter=name, tokens=10**6) for name in "abcd"])
    simulation.step()
    windows = ((1,) * length,) * (50_000 // length)
    [job] = scheduler.add([ScoreRequest(base, windows, pooled=frozenset(range(len(windows)) if pooled else ()))])
    scored_tokens = []
    while job.state is not State.FINISHED:
        step = simulation.advance()
        newest = sum(segment.output == "next" for segment in step.segments)
        assert (step.base_id == "b") == (newest == len(streams)), "streams are in every step of their base model"
        scored_tokens.append(step.tokens - newest)
        assert scored_tokens[-1] <= (allowed[-1] if scored_tokens[-1] else 0) <= 2048
        seconds = bool(newest) + scored_tokens[-1] * token * draw.uniform(0.8, 1.2)
        scheduler.step_times.record(step.base_id, seconds, decodes=newest, prefills=scored_tokens[-1])
    assert sum(scored_tokens) == sum(simulation.scored.values()) == 50_000 // length * length
    assert max(scored_tokens[16:]) <= max(MIN_TOKENS, 1.3 / token), (
        "once the pace is known, a step takes about twice as long"
    )


# --- pieces ---------------------------------------------------------------------------------------


def test_a_long_prompt_goes_in_pieces() -> None:
    segments = [step.segments[0] for step in steps_of(generate(25, tokens=1), tokens=10)]
    assert [(segment.start, segment.length, segment.output) for segment in segments] == [
        (0, 10, "nothing"),
        (10, 10, "nothing"),
        (20, 5, "next"),
    ]


def test_a_long_text_goes_in_pieces_beside_streams_and_whole_without() -> None:
    simulation, _ = simulation_after(generate(tokens=9), tokens=100, pace=20)
    simulation.add([score(50)])
    pieces = [segment for _ in range(3) for segment in simulation.advance().segments if segment.output == "score"]
    assert [(piece.start, piece.length, piece.keeps_kv) for piece in pieces] == [
        (0, 20, True),
        (20, 20, True),
        (40, 10, True),
    ]
    [step] = steps_of(score(50), tokens=10)
    assert (step.segments[0].length, step.segments[0].keeps_kv) == (50, False)


def test_texts_of_one_request_take_over_nothing_from_each_other() -> None:
    simulation, _ = simulation_after(generate(tokens=9), tokens=100, pace=40)
    simulation.add([ScoreRequest("b", ((1,) * 50, (2,) * 20), PREFIXED)])
    first, second = [
        [segment for segment in simulation.advance().segments if segment.output == "score"] for _ in range(2)
    ]
    assert [(segment.start, segment.length) for segment in first] == [(0, 40)]
    assert [(segment.start, segment.length, segment.copy_from) for segment in second] == [(40, 10, None), (0, 20, None)]


def test_a_base_model_that_needs_whole_texts_gets_them() -> None:
    scheduler = Scheduler(
        admission=AdmissionControl(9), max_step_tokens=10, max_running=1, can_chunk=lambda _base_id: False
    )
    scheduler.add([score(50)])
    assert [step.tokens for step in drain(Simulation(scheduler))] == [50]


def test_texts_of_one_length_come_together() -> None:
    steps = steps_of(score(2, 10, 3, 9, 2, 3), tokens=20)
    assert [[segment.length for segment in step.segments] for step in steps] == [[10, 9], [3, 3, 2, 2]]


def test_a_text_behind_a_prefix_has_a_row_that_counts_it() -> None:
    steps = steps_of(ScoreRequest("b", ((1, 1),) * 2, PREFIXED), kv=MIN_ROW_POSITIONS)
    assert [len(step.segments) for step in steps] == [1, 1], "there is memory for one row"
    assert all(segment.keeps_kv for step in steps for segment in step.segments)


def test_choices_take_over_the_prompt_of_the_first() -> None:
    steps = steps_of(generate(30, n=4, tokens=3), rows=9, pace=100)
    assert [step.tokens for step in steps] == [30, 4, 4, 3]
    assert [segment.copy_from is not None for segment in steps[1].segments] == [False, True, True, True]


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        generate(4 * MIN_ROW_POSITIONS),
        generate(4 * MIN_ROW_POSITIONS, adapter="a"),
        # which goes in pieces behind a stream of its base model, or a prefix
        ScoreRequest("b", ((1,) * (4 * MIN_ROW_POSITIONS),), PREFIXED),
    ],
    ids=["base", "adapter", "text"],
)
def test_a_large_one_has_its_turn_where_small_ones_of_other_base_models_take_the_memory(request_: Request) -> None:
    """It waits twice the steps that all of them have patience for, as the bases take turns; small ones never end."""
    small = [generate(adapter=name, tokens=20 + n, base="c") for n, name in enumerate("-abcdefg")]
    simulation, _ = simulation_after(*small, steps=9, max_queue=10_000, rows=99, kv=8 * MIN_ROW_POSITIONS)
    [large] = simulation.add([request_])
    for number in range(2 * (3 * PATIENCE_STEPS)):
        simulation.add([small[number % 8], small[(number + 3) % 8]])
        simulation.step()
    assert large.state is not State.WAITING


def test_a_text_has_its_turn_beside_streams_of_its_own_adapter() -> None:
    small = [generate(tokens=20 + n) for n in range(8)]
    simulation, _ = simulation_after(*small, steps=9, max_queue=10_000, rows=99, kv=8 * MIN_ROW_POSITIONS, pace=20)
    [large] = simulation.add([score(4 * MIN_ROW_POSITIONS)])
    for _ in range(3 * PATIENCE_STEPS):
        simulation.add(small[:2])
        simulation.step()
    assert large.state is not State.WAITING


def test_memory_is_not_saved_for_one_whose_base_model_is_not_there() -> None:
    simulation, _ = simulation_after(
        *[generate(adapter=name, tokens=60, base="c") for name in "def"], steps=3, rows=99, kv=4 * MIN_ROW_POSITIONS
    )
    [large] = simulation.add([generate(4 * MIN_ROW_POSITIONS, adapter="a")])
    simulation.steps(2 * PATIENCE_STEPS)
    assert simulation.scheduler._reservation.holder is large
    [small] = simulation.add([generate(tokens=1, base="c")])
    simulation.scheduler.next_step({"c"})
    assert small.state is State.RUNNING
    drain(simulation)


def test_the_youngest_starts_again_where_memory_is_short() -> None:
    simulation, (old, young) = simulation_after(
        generate(MIN_ROW_POSITIONS - 2, tokens=9),
        generate(MIN_ROW_POSITIONS - 2, tokens=9),
        steps=5,
        kv=3 * MIN_ROW_POSITIONS,
        pace=100,
    )
    assert simulation.scheduler.sequences_with_rows()["b"][0].group is old
    assert len(simulation.scheduler.sequences_with_rows()["b"]) == 1
    drain(simulation)
    assert simulation.ended == [old, young]


def test_what_has_ended_holds_nothing() -> None:
    simulation, (running, gone) = simulation_after(generate(tokens=9), generate(tokens=9, n=2))
    assert simulation.scheduler._kv_budget.bytes == 2 * MIN_ROW_POSITIONS
    assert gone.ticket.cancel()
    assert simulation.scheduler.drop_cancelled() == [gone]
    assert gone.state is State.CANCELLED
    assert simulation.scheduler._kv_budget.bytes == MIN_ROW_POSITIONS
    assert simulation.advance().groups == [running]
    assert simulation.scheduler.drop_cancelled() == []


# --- kept texts -----------------------------------------------------------------------------------


def after_one(**limit: int) -> Simulation:
    """A simulation in which one prompt of 40 tokens has been answered with 3."""
    simulation = simulation_of(**limit)
    simulation.add([generate(40, tokens=3, namespace="one")])
    drain(simulation)
    assert simulation.scheduler.prefixes.bytes == 42, "the newest token has been drawn and not computed"
    return simulation


def test_all_choices_take_over_the_text_at_once() -> None:
    simulation = after_one(kv=99 * MIN_ROW_POSITIONS, rows=9)
    simulation.add([generate(40, n=3, namespace="one")])
    assert [(segment.start, segment.length) for segment in simulation.advance().segments] == [(39, 1)] * 3


def test_what_is_kept_goes_before_any_sequence_starts_again() -> None:
    simulation = after_one(kv=2 * MIN_ROW_POSITIONS)
    simulation.add([generate(50, tokens=4, namespace="two"), generate(9, tokens=30, namespace="two")])
    simulation.step()
    assert len(simulation.scheduler.sequences_with_rows()["b"]) == 2
    assert (len(simulation.scheduler.prefixes), simulation.texts) == (0, set())


def test_what_a_step_takes_over_makes_no_room_for_others_of_that_step() -> None:
    simulation = after_one(kv=2 * MIN_ROW_POSITIONS)
    first, second = simulation.add([generate(40, namespace="one"), generate(9, namespace="two")])
    assert simulation.advance().groups == [first]
    assert simulation.reused == 39
    simulation.steps(2)
    assert second.state is not State.WAITING
    assert simulation.texts == set()


def test_what_has_no_room_even_so_drives_nothing_out() -> None:
    simulation = after_one(kv=3 * MIN_ROW_POSITIONS)
    simulation.add([generate(100, tokens=4), generate(100, tokens=4)])
    simulation.step()
    assert len(simulation.scheduler.sequences_with_rows()["b"]) == 1
    assert len(simulation.scheduler.prefixes) == 1


def test_a_cancelled_one_leaves_what_it_has_computed_and_a_failed_one_nothing() -> None:
    simulation, [cancelled] = simulation_after(generate(50, namespace="one"), tokens=20, kv=99 * MIN_ROW_POSITIONS)
    cancelled.ticket.cancel()
    simulation.step()
    [failed] = simulation.add([generate(50, namespace="two")])
    simulation.step()
    simulation.scheduler.fail([failed], Unavailable("gone"))
    simulation.step()
    assert [(text.scope[2], len(text.ids)) for text in simulation.texts] == [("one", 20)]


def test_the_first_step_is_the_streams_alone_and_so_is_one_now_and_then() -> None:
    times = StepTimes()
    assert times.beside_decodes("b", 400) == 0
    assert [times.beside_decodes("b", 400) for _ in range(PROBE_INTERVAL)] == [100] * (PROBE_INTERVAL - 1) + [0]
    assert times.beside_decodes("c", 400) == 0, "another base model has another pace"


def test_a_full_queue_takes_none_of_a_list_and_says_when_to_come_back() -> None:
    scheduler = scheduler_of(max_queue=2, tokens=8, rows=1)
    scheduler.add([generate()] * 5)  # not full before: a list is taken as a whole
    with pytest.raises(Busy, match="holds 5 requests") as caught:
        scheduler.add([generate(), generate()], retry_after=lambda _tokens: 7)
    assert caught.value.retry_after == 7
    assert scheduler.depth == 5


def test_failing_one_request_of_a_step_leaves_the_others() -> None:
    scheduler = scheduler_of()
    running, gone = scheduler.add([generate(tokens=9), generate(tokens=9)])
    step = scheduler.next_step()
    error = Unavailable("no")
    assert scheduler.fail([gone], error) == [gone]
    assert scheduler.fail([gone], Unavailable("again")) == []
    assert gone.error is error
    scheduler.mark_computed(step)
    assert scheduler.finish([segment.sequence for segment in step.segments]) == [running], (
        "those of an ended request are ignored"
    )
