"""The queueing model of a fleet against the same fleet simulated request by request, and the laws of its parts."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict
from dataclasses import dataclass, field
from math import fsum, inf, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fleet_model
from benchmarks.fleet_model import Fleet, Popularity, Prediction, Whole, Work

WORK = Work(request=0.1, load=0.09, tokens=16)
ADAPTERS = 200
REQUESTS = 15_000
HIT, SPILT = 0.04, 0.08
"""How far the model's shares may be from the simulation's."""
RATE = 0.06
"""How far its requests a second may be, of the simulation's."""


# --- a fleet, request by request ----------------------------------------------------------------------


@dataclass
class Server:
    """Shares its time among its requests, and holds the adapters that were used last."""

    slots: int
    clock: float = 0.0
    done: float = 0.0
    """Seconds of work that each request that is there has had since the start."""
    running: list[tuple[float, int]] = field(default_factory=list)
    ready: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self.running)

    def go_on(self, now: float) -> None:
        if self.running:
            self.done += (now - self.clock) / len(self.running)
        self.clock = now

    def ends(self) -> float:
        """When its next request does, if none comes."""
        return self.clock + (self.running[0][0] - self.done) * len(self.running) if self.running else inf

    def find(self, adapter: int) -> bool:
        """Whether the adapter was loaded; now it is."""
        found = adapter in self.ready
        self.ready[adapter] = None
        self.ready.move_to_end(adapter)
        if len(self.ready) > self.slots:
            self.ready.popitem(last=False)
        return found


def simulated(fleet: Fleet, popularity: Popularity, route: tuple[Whole, Whole] | None, *, clients: int) -> Prediction:
    """What happens to `REQUESTS`, after a fifth as many; at random where there is no `route`."""
    draw = random.Random(7)
    servers = [Server(fleet.slots) for _ in range(fleet.replicas)]
    warm = REQUESTS // 5
    wanted = draw.choices(range(len(popularity.share)), popularity.share.tolist(), k=warm + REQUESTS + clients)
    found = spilt = 0
    began = now = 0.0
    for number, adapter in enumerate(wanted):
        if number >= clients:
            server = min(servers, key=Server.ends)
            now = server.ends()
            server.go_on(now)
            heapq.heappop(server.running)
        if number == warm + clients:
            began, found, spilt = now, 0, 0
        first, second = (int(one[adapter]) for one in route) if route else (draw.randrange(fleet.replicas), -1)
        there = len(servers[first])
        if route and there >= fleet.places and len(servers[second]) <= there - fleet.lead:
            first, spilt = second, spilt + 1
        server = servers[first]
        server.go_on(now)
        ready = server.find(adapter)
        found += ready
        work = draw.expovariate(1 / WORK.request) + (0 if ready else WORK.load)
        heapq.heappush(server.running, (server.done + work, number))
    return Prediction(found / REQUESTS, REQUESTS / (now - began), spilt / REQUESTS)


def drawn_route(replicas: int, seed: int) -> tuple[Whole, Whole]:
    """The first two servers of each adapter's ranking."""
    draw = np.random.default_rng(seed)
    ranks = draw.random((ADAPTERS, replicas)).argsort(axis=1)
    return ranks[:, 0], ranks[:, 1]


def assert_near(model: Prediction, simulation: Prediction) -> None:
    assert model.hit == pytest.approx(simulation.hit, abs=HIT)
    assert model.spilt == pytest.approx(simulation.spilt, abs=SPILT)
    assert model.requests_per_s == pytest.approx(simulation.requests_per_s, rel=RATE)


@pytest.mark.parametrize("clients", [8, 24, 36, 48, 96])
@pytest.mark.parametrize("lead", [1, 16])
def test_routing_by_adapter_is_as_simulated(clients: int, lead: int) -> None:
    fleet, popularity = Fleet(3, 40, 16, lead), fleet_model.zipf(ADAPTERS, 1.0)
    first, second = drawn_route(3, seed=clients)
    model = fleet_model.by_adapter(fleet, popularity, WORK, first, second, clients=clients)
    assert_near(model, simulated(fleet, popularity, (first, second), clients=clients))


@pytest.mark.parametrize("exponent", [0.7, 1.3])
def test_other_popularities_and_more_servers_are_too(exponent: float) -> None:
    fleet, popularity = Fleet(5, 20, 8), fleet_model.zipf(ADAPTERS, exponent)
    first, second = drawn_route(5, seed=1)
    model = fleet_model.by_adapter(fleet, popularity, WORK, first, second, clients=60)
    assert_near(model, simulated(fleet, popularity, (first, second), clients=60))


@pytest.mark.parametrize("clients", [2, 32])
def test_routing_at_random_is_as_simulated(clients: int) -> None:
    fleet, popularity = Fleet(3, 40, 16), fleet_model.zipf(ADAPTERS, 1.0)
    model = fleet_model.at_random(fleet, popularity, WORK, clients=clients)
    assert_near(model, simulated(fleet, popularity, None, clients=clients))


def test_many_servers_with_an_adapter_each_hold_what_one_with_all_slots_would() -> None:
    """What the large fleets are read off by."""
    popularity = fleet_model.zipf(ADAPTERS, 1.0)
    fleet = Fleet(10, 8, 10**6)  # never full: all stays where it belongs
    found = [simulated(fleet, popularity, drawn_route(10, seed), clients=10).hit for seed in range(3)]
    assert fleet_model.hits(popularity, 80) == pytest.approx(fsum(found) / 3, abs=HIT)


# --- laws ---------------------------------------------------------------------------------------------


@given(st.integers(1, 10**7), st.floats(0.3, 2))
def test_popularity_is_of_all_adapters_and_all_requests(adapters: int, exponent: float) -> None:
    popularity = fleet_model.zipf(adapters, exponent)
    assert popularity.count.sum() == adapters
    assert popularity.share @ popularity.count == pytest.approx(1)
    assert (np.diff(popularity.share) < 0).all()


def test_bands_are_as_good_as_one_by_one() -> None:
    harmonic = log(10**7) + 0.5772156649 + 0.5e-7
    assert fleet_model.zipf(10**7, 1.0).first == pytest.approx(1 / harmonic, rel=1e-4)


@settings(deadline=None)
@given(st.integers(2, 500), st.floats(0.3, 2), st.data())
def test_a_working_set_is_full_and_holds_the_popular_ones(adapters: int, exponent: float, data: st.DataObject) -> None:
    popularity = fleet_model.zipf(adapters, exponent)
    slots = data.draw(st.integers(1, adapters))
    held = fleet_model.held(popularity.share, popularity.count, slots)
    assert held @ popularity.count == pytest.approx(slots, rel=1e-6)
    assert ((held > 0) & (held <= 1)).all()
    assert (np.diff(held) <= 0).all()
    assert slots / adapters <= fleet_model.hits(popularity, slots) + 1e-9
    assert fleet_model.hits(popularity, adapters) == pytest.approx(1)


def test_the_line_goes_through_what_was_measured() -> None:
    rows = [{"loads_a_request": one, "tokens_per_s": 16 / (0.1 + 0.05 * one)} for one in (0.1, 0.5, 0.9)]
    work = fleet_model.fitted(rows, tokens=16)
    assert (work.request, work.load) == (pytest.approx(0.1), pytest.approx(0.05))
    assert work.tokens_per_s(0.5) == pytest.approx(16 / 0.125)


def test_an_adapter_of_two_servers_keeps_two_busy() -> None:
    popularity = fleet_model.zipf(ADAPTERS, 1.0)
    share = 1 / fsum(1 / rank for rank in itertools.islice(itertools.count(1), ADAPTERS))
    assert fleet_model.most_busy(popularity) == pytest.approx(2 / share)
    assert fleet_model.most_busy(popularity, choices=1) == pytest.approx(1 / share)
