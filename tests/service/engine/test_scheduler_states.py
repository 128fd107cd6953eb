"""A scheduler over a bank of few adapters: it always has something to run while somebody waits."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from service.engine.kv_budget import MIN_ROW_POSITIONS
from service.engine.request import Request
from service.engine.steps import SequenceGroup
from tests.service.engine.simulation import REQUESTS, Simulation, drain, generate, scheduler_of


class BankOfFew(RuleBasedStateMachine):
    """Requests come, are cancelled, and steps are made, some of them beside streams at some pace."""

    simulation: Simulation

    @initialize(
        tokens=st.integers(1, 64),
        rows=st.integers(1, 5),
        kv=st.none() | st.integers(1, 6),
        slots=st.integers(0, 2),
        pace=st.none() | st.integers(1, 40),
    )
    def begin(self, tokens: int, rows: int, kv: int | None, slots: int, pace: int | None) -> None:
        memory = None if kv is None else kv * MIN_ROW_POSITIONS
        scheduler = scheduler_of(tokens=tokens, rows=rows, kv=memory, pace=pace)
        self.simulation = Simulation(scheduler, adapter_bytes=slots)
        self.groups: list[SequenceGroup] = []

    @rule(wanted=st.lists(REQUESTS, min_size=1, max_size=4))
    def add(self, wanted: list[Request]) -> None:
        self.groups += self.simulation.scheduler.add(wanted) if self.simulation.scheduler.depth < 90 else []

    @rule(tokens=st.integers(20, 200), adapter=st.sampled_from("-abc"))
    def add_a_stream(self, tokens: int, adapter: str) -> None:
        self.groups += self.simulation.scheduler.add([generate(adapter=adapter, tokens=tokens % MIN_ROW_POSITIONS)])

    @rule(count=st.integers(1, 40))
    def steps(self, count: int) -> None:
        for _ in range(count):
            depth = self.simulation.scheduler.depth
            assert (self.simulation.step() is None) == (depth == 0)

    @precondition(lambda self: self.groups)
    @rule(number=st.integers(0, 99))
    def cancel(self, number: int) -> None:
        self.groups[number % len(self.groups)].ticket.cancel()
        self.simulation.ended += self.simulation.scheduler.drop_cancelled()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            drain(self.simulation)
            assert self.simulation.scheduler.depth == 0
            assert all(group.state.is_final for group in self.groups)


TestBankOfFew = BankOfFew.TestCase
# without shrinking, which takes minutes here
TestBankOfFew.settings = settings(max_examples=30, stateful_step_count=20, phases=[Phase.explicit, Phase.generate])
