"""A scheduler run as the engine runs it, without a model: what it must never do is looked at in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis import strategies as st

from registry.spec import BottleneckConfig
from service.engine.fairness import AdmissionControl
from service.engine.kv_budget import KVBudget
from service.engine.prefix_cache import PrefixCache
from service.engine.request import GenerateRequest, LoadableAdapter, Request, SamplingParams, ScoreRequest, State
from service.engine.scheduler import Scheduler
from service.engine.step_times import MIN_TOKENS
from service.engine.steps import CachedPrefix, Segment, Sequence, SequenceGroup, Step

CONFIG = BottleneckConfig(structure="pfeiffer", bottleneck=2, activation="relu")


def handle(name: str, size: int = 1) -> LoadableAdapter | None:
    return None if name == "-" else LoadableAdapter(name, CONFIG, dict, size_bytes=size)


def generate(
    length: int = 3,
    *,
    n: int = 1,
    adapter: str = "-",
    tokens: int = 4,
    base: str = "b",
    namespace: str | None = None,
    owner: str | None = None,
) -> GenerateRequest:
    params = SamplingParams(max_tokens=tokens, n=n)
    return GenerateRequest(base, (1,) * length, handle(adapter), params, namespace=namespace, owner=owner)


def score(*lengths: int, adapter: str = "-", owner: str | None = None) -> ScoreRequest:
    return ScoreRequest("b", tuple((1,) * length for length in lengths), handle(adapter), owner=owner)


def scheduler_of(
    *, max_queue: int = 99, tokens: int = 100, rows: int = 4, kv: int | None = None, pace: int | None = None
) -> Scheduler:
    """`kv` is the number of positions that there is memory for, `pace` the tokens beside streams."""
    space = KVBudget(kv, lambda _base_id: 1)
    scheduler = Scheduler(
        admission=AdmissionControl(max_queue),
        max_step_tokens=tokens,
        max_running=rows,
        prefixes=PrefixCache(space, "namespace"),
    )
    if pace is not None:
        scheduler.step_times.beside_decodes("b", tokens)
        scheduler.step_times.record("b", float(pace), decodes=1, prefills=0)
        scheduler.step_times.record("b", 1.0, decodes=0, prefills=1)
    return scheduler


class Simulation:
    """Runs a scheduler as the engine does, without a model: a choice generates `max_tokens` tokens."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        adapter_bytes: int | None = None,
        loaded: Callable[[SequenceGroup], bool] = lambda _work: True,
    ) -> None:
        self.scheduler = scheduler
        self.adapter_bytes = adapter_bytes
        self.loaded = loaded
        self.generated: dict[Sequence, int] = {}
        self.scored: dict[Sequence, int] = {}
        self.kept_positions: dict[Sequence, int] = {}
        self.texts: set[CachedPrefix] = set()
        self.reused = 0
        self.ended: list[SequenceGroup] = []

    def step(self) -> Step | None:
        self.ended += self.scheduler.drop_cancelled()
        self.change()
        step = self.scheduler.next_step(adapter_bytes=self.adapter_bytes, prefetch_adapter=self.loaded)
        self.change()
        if step is not None:
            self.check(step)
            self.scheduler.mark_computed(step)
            done = [segment.sequence for segment in step.segments if self.is_done(segment)]
            self.ended += self.scheduler.finish(done)
        return step

    def advance(self) -> Step:
        """Make a step, while somebody waits or runs."""
        step = self.step()
        assert step is not None
        return step

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def add(self, requests: Iterable[Request]) -> list[SequenceGroup]:
        return self.scheduler.add(list(requests))

    def change(self) -> None:
        """Copy and forget kept texts as the runner does."""
        fresh, gone = self.scheduler.prefixes.take_changes()
        assert all(self.kept_positions[text.source] >= len(text.ids) for text in fresh if text.source is not None)
        self.texts = (self.texts | set(fresh)) - set(gone)
        assert self.scheduler.prefixes.bytes == sum(text.positions for text in self.texts)

    def is_done(self, segment: Segment) -> bool:
        """Do as the engine does with a segment: keep, score, or draw a token; true where that ends its sequence."""
        sequence, end = segment.sequence, segment.start + segment.length
        request = sequence.group.request
        if segment.keeps_kv:
            self.kept_positions[sequence] = end
        if isinstance(request, ScoreRequest):
            self.scored[sequence] = self.scored.get(sequence, 0) * (segment.start > 0) + segment.length
            return end == len(sequence.ids)
        if segment.output != "next":
            return False
        if not request.params.max_tokens:
            self.generated[sequence] = 0
            return True
        sequence.ids.append(1)
        self.generated[sequence] = self.generated.get(sequence, 0) + 1
        return self.generated[sequence] >= request.params.max_tokens

    def check(self, step: Step) -> None:
        scheduler = self.scheduler
        sequences = [segment.sequence for segment in step.segments]
        assert sequences
        assert len(set(sequences)) == len(sequences)
        assert {sequence.group.base_id for sequence in sequences} == {step.base_id}
        assert all(sequence.group.state is State.RUNNING for sequence in sequences)
        assert scheduler.generating <= scheduler.max_running
        if len(step.segments) > 1 and not any(sequence.is_decoding for sequence in sequences):
            beside = MIN_TOKENS if scheduler._preempted else 0  # of streams that have given way since
            assert step.tokens <= max(scheduler.max_step_tokens, beside)
        space = scheduler._kv_budget
        assert space.limit is None or space.bytes <= space.limit
        sizes = {sequence.group.digest: 1 for sequence in sequences if sequence.group.digest}
        assert self.adapter_bytes is None or len(sizes) == 1 or sum(sizes.values()) <= self.adapter_bytes
        for segment in step.segments:
            assert segment.length >= 1
            if isinstance(segment.copy_from, CachedPrefix):
                assert segment.copy_from in self.texts
                assert segment.copy_from.ids[: segment.start] == tuple(segment.sequence.ids[: segment.start])
                request = segment.sequence.group.request
                assert isinstance(request, GenerateRequest)
                group = segment.sequence.group
                assert segment.copy_from.scope == (group.base_id, group.digest, request.namespace)
                self.reused += segment.start
            elif segment.copy_from is not None:
                assert self.kept_positions[segment.copy_from] >= segment.start
                assert segment.copy_from.group is segment.sequence.group
            elif segment.start:
                assert self.kept_positions[segment.sequence] == segment.start, "what stands before a segment is kept"


def simulation_of(
    *, adapter_bytes: int | None = None, loaded: Callable[[SequenceGroup], bool] = lambda _work: True, **limits: Any
) -> Simulation:
    """A simulation of a scheduler with these limits."""
    return Simulation(scheduler_of(**limits), adapter_bytes=adapter_bytes, loaded=loaded)


def simulation_after(*requests: Request, steps: int = 1, **limits: Any) -> tuple[Simulation, list[SequenceGroup]]:
    """A simulation of a scheduler with these limits that has made so many steps with these requests; their groups."""
    simulation = simulation_of(**limits)
    groups = simulation.add(requests)
    simulation.steps(steps)
    return simulation, groups


def drain(simulation: Simulation, limit: int = 10_000) -> list[Step]:
    steps = []
    while (step := simulation.step()) is not None:
        steps.append(step)
        assert len(steps) < limit, "the scheduler never comes to an end"
    return steps


def steps_of(*requests: Request, **limits: Any) -> list[Step]:
    """The steps in which requests that come together are computed."""
    simulation = simulation_of(**limits)
    simulation.add(requests)
    return drain(simulation)


OWNERS = st.sampled_from([None, "x", "y"])
REQUESTS = st.one_of(
    st.builds(
        generate,
        st.integers(1, 30),
        n=st.integers(1, 5),
        adapter=st.sampled_from("-abc"),
        tokens=st.integers(0, 9),
        namespace=st.sampled_from([None, "one", "two"]),
        owner=OWNERS,
    ),
    st.builds(
        lambda lengths, adapter, owner: score(*lengths, adapter=adapter, owner=owner),
        st.lists(st.integers(1, 30), min_size=1, max_size=12),
        st.sampled_from("-abc"),
        OWNERS,
    ),
)
