"""What the router saves: how many requests find their adapter ready, by it and at servers drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from benchmarks.fleet.asking import CLIENTS, REPLICAS, behind_router, completion
from benchmarks.replicas import Place, Process, Pushed, adapter_size, answered, figures_of, push_adapters, the_base
from benchmarks.report import Result
from demo.results import Figure

AFFINITY_GOAL = 1.3


def measure_affinity(result: Result, *, adapters: int, slots: int, requests: int, replicas: int = REPLICAS) -> None:
    """The same requests by the router, and to servers drawn at random."""
    hits: dict[str, float] = {}
    base = the_base()
    bank = str(slots * adapter_size(base))
    for way in ("routed", "random"):
        with behind_router(replicas, SOUP_ADAPTER_BANK_BYTES=bank) as (at, servers, router):
            with at.client(router) as client:
                pushed = push_adapters(client, base, adapters)
            hits[way] = _share_held(at, servers, [router] if way == "routed" else servers, pushed, requests)
            row = {"part": "affinity", "way": way, "replicas": replicas, "slots": slots, "adapters": adapters}
            result.rows.append({**row, "requests": requests, "held": hits[way]})
    note = f"{hits['routed']:.3f} over {hits['random']:.3f}; {replicas} x {slots} slots, {adapters} adapters, Zipf 1.0"
    result.figures["affinity"] = Figure(hits["routed"] / hits["random"], "ratio", AFFINITY_GOAL, note=note)


def _share_held(
    at: Place, servers: Sequence[Process], asked: Sequence[Process], pushed: Sequence[Pushed], requests: int
) -> float:
    """The share of requests that found their adapter ready, after as many again to warm up."""
    weights = [1.0 / rank for rank in range(1, len(pushed) + 1)]

    def ask(number: int) -> None:
        draw = random.Random(number)
        with ExitStack() as stack:
            clients = [stack.enter_context(at.client(one)) for one in asked]
            for _ in range(requests // CLIENTS):
                one = draw.choices(pushed, weights)[0]
                answered(draw.choice(clients).post("/v1/completions", json=completion(one.name, max_tokens=1)))

    with ExitStack() as stack:
        clients = [stack.enter_context(at.client(one)) for one in servers]

        def loads() -> float:
            return figures_of(clients, "soup_engine_adapter_loads_total")

        before = 0.0
        for turn in range(2):
            before = loads()
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(ask, range(turn * CLIENTS, (turn + 1) * CLIENTS)))
        return 1 - (loads() - before) / (requests // CLIENTS * CLIENTS)
