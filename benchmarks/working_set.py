"""Traffic over more adapters than fit in memory: tokens per second, and the latency of an adapter that is not loaded.

- `working_set_4x` (and 2x, 8x): throughput of clients that use 4 times as many adapters as fit in the engine's memory,
  drawn evenly, relative to the same traffic on as many as fit (1x). Each client sends its next request after an answer.
- `cold_first_token_ms`: the time to the first token with an adapter that is not ready, less that with one that is, one
  request at a time.

Adapters are files on this machine's disk (in the page cache, as after a push) that are read and checked against their
digests as the server does. LoRAs on queries and values.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.report import Result, options, ratios, repeated, seconds
from benchmarks.subjects import (
    CopiedBases,
    Window,
    about,
    base_options,
    chosen_base,
    digest_of,
    drawn_tensors,
    lora_of,
    rows_of,
    silent,
)
from registry.adapters.loadable import Tensors
from registry.adapters.weights import load_tensors, save_tensors
from registry.base_model import LoadedBase
from registry.cores import use_cores
from registry.errors import Internal
from service.engine import EngineLimits, GenerateRequest, LoadableAdapter, SamplingParams
from service.engine.engine import Engine

HELD = 16
"""Adapters that the engine holds ready."""
FACTORS = (1, 2, 4, 8)
CLIENTS, REQUESTS, PROMPT, TOKENS = 16, 96, 32, 16
NAMESPACE = "bench"
"""Of all requests, as those of one key: prompts of several tenants take smaller parts of a step."""
PAIRS = 8
"""First tokens of each kind in a repeat."""
GOALS = {"working_set_4x": (0.8, 0.9), "cold_first_token_ms": (30.0, 15.0)}


@dataclass(frozen=True)
class Setting:
    """A base model and stored adapters, more than the engines made of them hold."""

    base: LoadedBase
    stored: Sequence[LoadableAdapter]
    capacity: int
    requests: int

    def engine(self) -> Engine:
        """One that holds `capacity` adapters ready, started."""
        engine = Engine(
            CopiedBases({self.base.entry.id: self.base}),
            EngineLimits(max_running=CLIENTS, adapter_cache_bytes=self.capacity * self.stored[0].size_bytes),
        )
        engine.start()
        return engine

    def ask(self, engine: Engine, prompt: Window, adapter: LoadableAdapter, tokens: int) -> float:
        """Seconds to the first token of one request, and wait for the last."""
        began, first = time.perf_counter(), list[float]()
        engine.submit(
            GenerateRequest(
                self.base.entry.id,
                prompt,
                adapter,
                SamplingParams(max_tokens=tokens, temperature=0),
                on_token=lambda _delta: first.append(time.perf_counter()),
                namespace=NAMESPACE,
            )
        ).result()
        return first[0] - began

    def traffic(self, engine: Engine, factor: int, draws: Iterator[int]) -> None:
        """Requests of all clients, each for an adapter of the first `factor` times `capacity`."""
        draw = random.Random(next(draws))
        prompts = rows_of(self.base, rows=self.requests, length=PROMPT, seed=draw.randrange(2**30))
        chosen = [self.stored[draw.randrange(factor * self.capacity)] for _ in prompts]
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(partial(self.ask, engine, tokens=TOKENS), prompts, chosen))


def prepare(base: LoadedBase, folder: Path, *, capacity: int, factors: Sequence[int], requests: int) -> Setting:
    """Adapters in files of `folder`."""
    config = lora_of(base.shape)
    stored = []
    for seed in range(capacity * max(factors)):
        tensors = drawn_tensors(base, config, seed)
        digest, file = digest_of(base, config, tensors), folder / f"{seed}.safetensors"
        file.write_bytes(save_tensors(tensors))
        size = sum(tensor.nbytes for tensor in tensors.values())

        def load(file: Path = file, digest: str = digest) -> Tensors:
            loaded = load_tensors(file.read_bytes())
            if digest_of(base, config, loaded) != digest:
                raise Internal(f"{file} holds another adapter")
            return loaded

        stored.append(LoadableAdapter(digest, config, load, size))
    return Setting(silent(base), stored, capacity, requests)


def run(base: LoadedBase, *, capacity: int, factors: Sequence[int], requests: int, repeats: int) -> Result:
    """The curve, and first tokens."""
    result = Result()
    with tempfile.TemporaryDirectory() as folder:
        setting = prepare(base, Path(folder), capacity=capacity, factors=factors, requests=requests)
        measure_traffic(result, setting, factors, repeats=repeats)
        measure_first_tokens(result, setting, repeats=repeats)
    return result


def measure_traffic(result: Result, setting: Setting, factors: Sequence[int], *, repeats: int) -> None:
    """Each point has an engine of its own in every repeat, after traffic that is not measured.

    Only one engine lives at a time: idle ones keep workers of torch, which slow the others.
    """
    times: dict[str, list[float]] = {f"{factor}x": [] for factor in factors}
    loads: dict[str, int] = dict.fromkeys(times, 0)
    for repeat in range(repeats):
        for factor in factors:
            way, draws = f"{factor}x", itertools.count(2 * repeat)
            engine = setting.engine()
            try:
                setting.traffic(engine, factor, draws)
                loads_before = engine.counters()["adapter_loads_total"]
                times[way].append(seconds(partial(setting.traffic, engine, factor, draws)))
                loads[way] += int(engine.counters()["adapter_loads_total"] - loads_before)
            finally:
                engine.stop()
    tokens = setting.requests * TOKENS
    for way, wall_seconds in times.items():
        result.figures[f"{way}_tokens_per_s"] = repeated([tokens / duration for duration in wall_seconds], "tokens/s")
        result.rows.append(
            {
                **about(setting.base),
                "working_set": way,
                "held": setting.capacity,
                "clients": CLIENTS,
                "requests": setting.requests,
                "loads_a_request": loads[way] / (setting.requests * repeats),
                "tokens_per_s": tokens / median(wall_seconds),
            }
        )
        if way != "1x":
            goal, stretch = GOALS.get(f"working_set_{way}", (None, None))
            result.figures[f"working_set_{way}"] = repeated(
                ratios(times["1x"], wall_seconds),
                "ratio",
                goal=goal,
                stretch=stretch,
                note=f"tokens/s; {setting.capacity} adapters held, {CLIENTS} clients",
            )


def measure_first_tokens(result: Result, setting: Setting, *, repeats: int) -> None:
    """A warm and a cold one in turn; raises Internal where an adapter was loaded that should be ready, or was ready."""
    engine = setting.engine()
    prompts = itertools.count()
    cold_ones = itertools.cycle(setting.stored[1:])

    def first(adapter: LoadableAdapter, *, loads: int) -> float:
        (prompt,) = rows_of(setting.base, rows=1, length=PROMPT, seed=next(prompts))
        loads_before = engine.counters()["adapter_loads_total"]
        duration = setting.ask(engine, prompt, adapter, 1)
        if engine.counters()["adapter_loads_total"] - loads_before != loads:
            raise Internal(
                f"a first token took {engine.counters()['adapter_loads_total'] - loads_before} loads, not {loads}"
            )
        return 1000 * duration

    warm: list[float] = []
    cold: list[float] = []
    try:
        first(setting.stored[0], loads=1)
        for _ in range(repeats):
            pairs = [(first(setting.stored[0], loads=0), first(next(cold_ones), loads=1)) for _ in range(PAIRS)]
            warm.append(median(warm_ms for warm_ms, _ in pairs))
            cold.append(median(cold_ms for _, cold_ms in pairs))
    finally:
        engine.stop()
    goal, stretch = GOALS["cold_first_token_ms"]
    result.figures["warm_first_token_ms"] = repeated(warm, "ms")
    result.figures["cold_first_token_ms"] = repeated(
        [cold_ms - warm_ms for cold_ms, warm_ms in zip(cold, warm, strict=True)],
        "ms",
        goal=goal,
        stretch=stretch,
        note="longer than with an adapter that is ready; its file is in the page cache",
    )


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    base_options(parser)
    parser.add_argument("--held", type=int, default=HELD, help="adapters that the engine holds ready")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="requests of one measurement")
    arguments = parser.parse_args()
    use_cores(1)  # workers that torch keeps for this thread would slow the engine's
    run(
        chosen_base(arguments.base_folder, arguments.dtype),
        capacity=arguments.held,
        factors=FACTORS,
        requests=arguments.requests,
        repeats=arguments.repeats,
    ).finish(arguments.out)


if __name__ == "__main__":
    main()
