"""What the router costs: streams at once through it, beside the same from the server behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

from benchmarks.faults.server import BASE
from benchmarks.fleet.asking import behind_router, completion
from benchmarks.replicas import FOLDER
from benchmarks.report import Result, interleaved, ratios, repeated
from registry.errors import Internal

OVERHEAD_GOAL = 0.95


def measure_overhead(result: Result, *, streams: int, tokens: int, repeats: int, source: Path = FOLDER) -> None:
    """Streams at once, straight from a server and through a router before it."""
    with behind_router(1, source) as (at, servers, router), ExitStack() as stack:
        clients = {way: stack.enter_context(at.client(of)) for way, of in (("direct", servers[0]), ("routed", router))}
        body = completion(f"base/{BASE}", stream=True, max_tokens=tokens)
        body.pop("logprobs")
        calls = {way: streaming(client, body, streams) for way, client in clients.items()}
        times = interleaved(calls, repeats=repeats)
    result.rows += [
        {"part": "overhead", "way": way, "streams": streams, "tokens": tokens, "wall_s": median(found)}
        for way, found in times.items()
    ]
    found = ratios(times["direct"], times["routed"])
    result.figures["router_overhead"] = repeated(
        found, "ratio", goal=OVERHEAD_GOAL, note=f"tokens/s through the router over direct; {streams} streams"
    )


def streaming(client: httpx2.Client, body: Mapping[str, Any], streams: int) -> Callable[[], None]:
    """Reads so many streams at once, each to its end."""

    def one(_: int) -> None:
        with client.stream("POST", "/v1/completions", json=body) as answer:
            last = ""
            for line in answer.iter_lines():
                last = line or last
        if last != "data: [DONE]":
            raise Internal(f"a stream ended with {last[:200]}")

    def all_of_them() -> None:
        with ThreadPoolExecutor(streams) as pool:
            list(pool.map(one, range(streams)))

    return all_of_them
