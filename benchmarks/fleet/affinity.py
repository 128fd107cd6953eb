"""What the router saves: how many requests find their adapter ready, by it and at servers drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from benchmarks.fleet.asking import REPLICAS, behind_router, completion
from benchmarks.replicas import Place, Process, Pushed, adapter_size, answered, figures_of, push_adapters, the_base
from benchmarks.report import Result
from demo.results import Figure


def measure_affinity(
    result: Result, name: str, *, adapters: int, slots: int, requests: int, clients: int, goal: float | None,
    replicas: int = REPLICAS,
) -> None:  # fmt: skip
    """The same requests by the router, and to servers drawn at random, from so many clients at once."""
    hits: dict[str, float] = {}
    base = the_base()
    bank = str(slots * adapter_size(base))
    for way in ("routed", "random"):
        with behind_router(replicas, SOUP_ADAPTER_BANK_BYTES=bank) as (at, servers, router):
            with at.client(router) as client:
                pushed = push_adapters(client, base, adapters)
            asked = [router] if way == "routed" else servers
            hits[way] = _share_held(at, servers, asked, pushed, requests, clients)
            row = {"part": name, "way": way, "replicas": replicas, "slots": slots, "adapters": adapters}
            result.rows.append({**row, "requests": requests, "clients": clients, "held": hits[way]})
    fleet = f"{replicas} x {slots} slots, {adapters} adapters, Zipf 1.0, {clients} clients"
    note = f"{hits['routed']:.3f} over {hits['random']:.3f}; {fleet}"
    result.figures[name] = Figure(hits["routed"] / hits["random"], "ratio", goal, note=note)


def _share_held(
    at: Place, servers: Sequence[Process], asked: Sequence[Process], pushed: Sequence[Pushed], requests: int,
    at_once: int,
) -> float:  # fmt: skip
    """The share of requests that found their adapter ready, after as many again to warm up."""
    weights = [1.0 / rank for rank in range(1, len(pushed) + 1)]

    def ask(number: int) -> None:
        draw = random.Random(number)
        with ExitStack() as stack:
            clients = [stack.enter_context(at.client(one)) for one in asked]
            for _ in range(requests // at_once):
                one = draw.choices(pushed, weights)[0]
                answered(draw.choice(clients).post("/v1/completions", json=completion(one.name, max_tokens=1)))

    with ExitStack() as stack:
        clients = [stack.enter_context(at.client(one)) for one in servers]

        def loads() -> float:
            return figures_of(clients, "soup_engine_adapter_loads_total")

        before = 0.0
        for turn in range(2):
            before = loads()
            with ThreadPoolExecutor(at_once) as pool:
                list(pool.map(ask, range(turn * at_once, (turn + 1) * at_once)))
        return 1 - (loads() - before) / (requests // at_once * at_once)
