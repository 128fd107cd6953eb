"""The scheduler's laws: capacity is never exceeded, nobody starves, every request ends in exactly one final state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import Busy, Internal, Unavailable
from registry.spec import BottleneckConfig, PrefixConfig
from service.engine.request import GenerateRequest, LoadableAdapter, Request, SamplingParams, ScoreRequest, State
from service.engine.scheduler import Batch, Row, Scheduler, Work

CONFIG = BottleneckConfig(structure="pfeiffer", bottleneck=2, activation="relu")


def handle(name: str) -> LoadableAdapter | None:
    return None if name == "-" else LoadableAdapter(name, CONFIG, dict)


def generate(length: int = 3, *, n: int = 1, adapter: str = "-", tokens: int = 4) -> GenerateRequest:
    return GenerateRequest("b", (1,) * length, handle(adapter), SamplingParams(max_tokens=tokens, n=n))


def score(*lengths: int, adapter: str = "-") -> ScoreRequest:
    return ScoreRequest("b", tuple((1,) * length for length in lengths), handle(adapter))


class Simulation:
    """Runs a scheduler as the engine does, without a model: a row generates `max_tokens` tokens."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.made: dict[Row, int] = {}
        self.runs: dict[Work, int] = {}
        self.ended: list[Work] = []

    def step(self) -> Batch | None:
        self.ended += self.scheduler.drop_cancelled()
        batch = self.scheduler.next()
        if batch is not None:
            self.check(batch)
            for row in batch.rows:
                self.made[row] = self.made.get(row, 0) + 1
                self.runs[row.work] = self.runs.get(row.work, 0) + 1
            self.ended += self.scheduler.finish([row for row in batch.rows if self.is_done(row, batch)])
        return batch

    def is_done(self, row: Row, batch: Batch) -> bool:
        request = row.work.request
        return batch.kind == "score" or self.made[row] >= (request.params.max_tokens or 0)

    def check(self, batch: Batch) -> None:
        scheduler = self.scheduler
        assert batch.rows
        assert len(set(batch.rows)) == len(batch.rows)
        assert {row.work.key for row in batch.rows} == {batch.key}
        assert all(row.work.state is State.RUNNING for row in batch.rows)
        assert scheduler.generating <= scheduler.max_rows
        lengths = [row.length for row in batch.rows]
        if batch.kind == "prefill" and len(lengths) > 1:
            assert len(lengths) * max(lengths) <= scheduler.max_batch_tokens
        if batch.kind == "score" and len(lengths) > 1:
            assert sum(lengths) <= scheduler.max_batch_tokens


def drain(simulation: Simulation, limit: int = 10_000) -> list[Batch]:
    batches = []
    while (batch := simulation.step()) is not None:
        batches.append(batch)
        assert len(batches) < limit, "the scheduler never comes to an end"
    return batches


requests = st.one_of(
    st.builds(
        generate, st.integers(1, 30), n=st.integers(1, 5), adapter=st.sampled_from("-ab"), tokens=st.integers(0, 9)
    ),
    st.lists(st.integers(1, 30), min_size=1, max_size=12).flatmap(
        lambda lengths: st.sampled_from("-ab").map(lambda adapter: score(*lengths, adapter=adapter))
    ),
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), requests),
        st.tuples(st.just("step"), st.integers(1, 6)),
        st.tuples(st.just("cancel"), st.integers(0, 100)),
        st.tuples(st.just("fail"), st.integers(0, 100)),
    ),
    max_size=40,
)


@given(actions, st.integers(1, 6), st.integers(1, 64), st.integers(1, 5))
def test_laws_hold_whatever_comes(
    script: list[tuple[str, object]], max_queue: int, max_tokens: int, max_rows: int
) -> None:
    scheduler = Scheduler(max_queue=max_queue, max_batch_tokens=max_tokens, max_rows=max_rows)
    simulation = Simulation(scheduler)
    works: list[Work] = []
    for what, value in script:
        if what == "add":
            full = scheduler.depth >= max_queue
            try:
                works += scheduler.add([value])  # type: ignore[list-item]
                assert not full
            except Busy:
                assert full
        elif what == "step":
            for _ in range(value):  # type: ignore[call-overload]
                simulation.step()
        elif works:
            work = works[value % len(works)]  # type: ignore[operator]
            if what == "cancel":
                work.ticket.cancel()
            else:
                simulation.ended += scheduler.fail([work, work], Unavailable("gone"))
        assert scheduler.depth <= max_queue
    drain(simulation)
    assert scheduler.depth == scheduler.generating == 0
    assert scheduler.alive() == {}
    assert sorted(map(id, simulation.ended)) == sorted(map(id, works)), "each request ends exactly once"
    for work in works:
        assert work.state.final
        assert (work.state is State.FAILED) == (work.error is not None)
        assert not work.waiting
        assert not work.running
        if work.state is State.FINISHED:
            assert work.ticket.rows_done == work.ticket.rows


@given(st.lists(requests, min_size=1, max_size=10), st.integers(1, 64), st.integers(1, 5))
def test_every_row_runs_as_often_as_it_must(wanted: list[Request], max_tokens: int, max_rows: int) -> None:
    simulation = Simulation(Scheduler(max_queue=99, max_batch_tokens=max_tokens, max_rows=max_rows))
    works = simulation.scheduler.add(wanted)
    drain(simulation)
    for work, request in zip(works, wanted, strict=True):
        assert work.state is State.FINISHED
        if isinstance(request, GenerateRequest):
            expected = request.params.n * max(1, request.params.max_tokens or 0)
        else:
            expected = len(request.windows)
        assert simulation.runs[work] == expected


def test_a_long_generation_does_not_hold_up_a_score_nor_the_other_way_round() -> None:
    scheduler = Scheduler(max_queue=99, max_batch_tokens=8, max_rows=4)
    simulation = Simulation(scheduler)
    [long] = scheduler.add([generate(tokens=1000)])
    simulation.step()
    [corpus] = scheduler.add([score(*[8] * 500)])
    [quick] = scheduler.add([score(2, adapter="a")])
    [other] = scheduler.add([generate(adapter="b", tokens=2)])
    for _ in range(16):
        simulation.step()
    assert quick.state is State.FINISHED
    assert other.state is State.FINISHED
    assert long.state is corpus.state is State.RUNNING
    assert simulation.runs[long] >= 4
    assert simulation.runs[corpus] >= 3


def test_between_two_steps_of_a_stream_is_at_most_one_turn_of_everything_else() -> None:
    scheduler = Scheduler(max_queue=99, max_batch_tokens=16, max_rows=4)
    simulation = Simulation(scheduler)
    [stream] = scheduler.add([generate(tokens=30)])
    scheduler.add([generate(adapter="a", tokens=30), *[score(*[4] * 50, adapter=str(i)) for i in range(9)]])
    kinds = []
    while stream.state is not State.FINISHED:
        batch = simulation.step()
        assert batch is not None
        kinds.append("stream" if any(row.work is stream for row in batch.rows) else batch.kind)
    gaps = "".join("|" if kind == "stream" else "." for kind in kinds).strip(".").split("|")
    assert max(map(len, gaps)) <= 3  # one other group, one prompt, one score


def test_the_oldest_prompt_gets_the_next_free_row_whatever_its_adapter() -> None:
    scheduler = Scheduler(max_queue=99, max_batch_tokens=100, max_rows=1)
    simulation = Simulation(scheduler)
    works = scheduler.add([generate(adapter=name, tokens=2) for name in "aabab"])
    drain(simulation)
    assert simulation.ended == works


def test_rows_of_several_requests_share_a_batch_and_a_group() -> None:
    scheduler = Scheduler(max_queue=99, max_batch_tokens=100, max_rows=4)
    scheduler.add([generate(adapter="a"), generate(adapter="b"), generate(adapter="a", n=3)])
    first = scheduler.next()
    assert first is not None
    assert (first.kind, first.key, len(first.rows)) == ("prefill", ("b", "a"), 4)


def test_a_row_longer_than_the_budget_runs_alone() -> None:
    scheduler = Scheduler(max_queue=9, max_batch_tokens=4, max_rows=4)
    scheduler.add([score(9, 2, 2), score(9)])
    sizes = []
    while (batch := scheduler.next()) is not None:
        sizes.append(sorted(row.length for row in batch.rows))
        scheduler.finish(batch.rows)
    assert sorted(sizes) == [[2, 2], [9], [9]]


def test_windows_of_like_length_share_a_batch() -> None:
    scheduler = Scheduler(max_queue=9, max_batch_tokens=20, max_rows=4)
    scheduler.add([score(2, 10, 3, 9, 2, 3)])
    batches = []
    while (batch := scheduler.next()) is not None:
        batches.append([row.length for row in batch.rows])
        scheduler.finish(batch.rows)
    assert batches == [[10, 9], [3, 3, 2, 2]]


def test_every_row_has_its_adapters_prefix_which_counts_too() -> None:
    scheduler = Scheduler(max_queue=9, max_batch_tokens=40, max_rows=9)
    prefixed = LoadableAdapter("p", PrefixConfig(length=8), dict)
    scheduler.add([
        ScoreRequest("b", ((1, 1),) * 6, prefixed),
        GenerateRequest("b", (1, 1), prefixed, SamplingParams(max_tokens=2, n=6)),
    ])  # fmt: skip
    prompts, windows = scheduler.next(), scheduler.next()
    assert prompts is not None
    assert windows is not None
    assert (prompts.kind, len(prompts.rows)) == ("prefill", 4), "40 tokens are four rows of 8 and 2"
    assert (windows.kind, len(windows.rows)) == ("score", 1), "a quarter of them while rows generate"


def test_scores_take_a_part_of_the_budget_while_rows_generate() -> None:
    scheduler = Scheduler(max_queue=9, max_batch_tokens=40, max_rows=4)
    scheduler.add([score(*[5] * 50)])
    alone = scheduler.next()
    scheduler.add([generate(tokens=50)])
    batches = [scheduler.next() for _ in range(3)]
    shared = next(batch for batch in batches if batch is not None and batch.kind == "score")
    assert alone is not None
    assert (len(alone.rows), len(shared.rows)) == (8, 2)


def test_a_full_queue_takes_none_of_a_list_and_says_when_to_come_back() -> None:
    scheduler = Scheduler(max_queue=2, max_batch_tokens=8, max_rows=1)
    scheduler.add([generate()] * 5)  # not full before: a list is taken as a whole
    with pytest.raises(Busy, match="holds 5 requests") as caught:
        scheduler.add([generate(), generate()], retry_after=7)
    assert caught.value.retry_after == 7
    assert scheduler.depth == 5


def test_cancelled_rows_leave_their_group_and_the_others_go_on() -> None:
    scheduler = Scheduler(max_queue=9, max_batch_tokens=100, max_rows=4)
    kept, gone = scheduler.add([generate(tokens=9), generate(tokens=9, n=2)])
    scheduler.next()
    assert gone.ticket.cancel()
    assert scheduler.drop_cancelled() == [gone]
    assert gone.state is State.CANCELLED
    batch = scheduler.next()
    assert batch is not None
    assert [row.work for row in batch.rows] == [kept]
    assert scheduler.drop_cancelled() == []


def test_failing_one_request_of_a_group_leaves_the_others() -> None:
    scheduler = Scheduler(max_queue=9, max_batch_tokens=100, max_rows=4)
    kept, gone = scheduler.add([generate(tokens=9), generate(tokens=9)])
    batch = scheduler.next()
    error = Unavailable("no")
    assert scheduler.fail([gone], error) == [gone]
    assert scheduler.fail([gone], Unavailable("again")) == []
    assert gone.error is error
    assert batch is not None
    assert scheduler.finish(batch.rows) == [kept], "rows of an ended request are ignored"


def test_states_never_go_back() -> None:
    scheduler = Scheduler(max_queue=9, max_batch_tokens=100, max_rows=4)
    [work] = scheduler.add([score(3)])
    assert scheduler.waiting == 1
    batch = scheduler.next()
    assert batch is not None
    assert scheduler.waiting == 0
    scheduler.finish(batch.rows)
    with pytest.raises(Internal, match="finished to running"):
        scheduler._move(work, State.RUNNING)
