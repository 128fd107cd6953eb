"""The speed of the registry: a catalogue of 100,000 adapters, fits over pools of 10,000, parallel pushes, refits.

- `list_ms_p95`, `filter_ms_p95`, `search_ms_p95`, `resolve_ms_p95`: a page of 50 out of 100,000 adapters, and one
  adapter by its name or alias, over HTTP on PostgreSQL, for a key that sees all of them; `sqlite_...` on SQLite.
- `fit_10k_s`: a whole fit of `posterior` over 10,000 adapters of 100 embeddings with 576 dimensions, from the stored
  vectors to the stored selector, in the process that a server fits in; `fit_10k_cosine_s` of `cosine`.
- `fit_10k_peak_gib`: memory of that process at most, beyond what it has after a fit of 20 adapters.
- `add_one_s`: one more adapter of that pool, from its stored vectors to a stored selector that knows it.
- `route_ms_p95`: the choice of `POST /v1/route` in such a pool, from a prompt's vector to the adapters.
- `nearest_ms_p95`: the ten adapters out of 100,000 whose samples are most like one passage's vector, exactly, by a
  selector in memory; `nearest_first_s`: from its file to the first answer.
- `push_many`: pushes a second by 8 clients at once.
- `refit_backlog`: fits that are to do after 1,000 pushes in a row into a pool that has a selector.

The results file is written after each part. With `--only` the named parts replace their results in the existing file,
and record their own date.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.server import database, temporary_server
from benchmarks.report import Part, Result, options, repeated, run_parts
from benchmarks.shelf import lists, nearest, pools, prompts, pushes
from demo.results import Figure
from registry.spec import CosineSpec, PosteriorSpec

ADAPTERS, REQUESTS, POOL, UNITS, DIMENSIONS = 100_000, 200, 10_000, 100, 576
CLIENTS, EACH, IN_A_ROW = 8, 20, 1_000
GOALS = {"list": 30.0, "filter": 30.0, "search": 60.0, "resolve": 5.0}
PEAK_GOAL, ADD_GOAL, ROUTE_GOAL, BACKLOG_GOAL = 2.0, 1.0, 5.0, 2
SPECS: dict[str, Any] = {"": PosteriorSpec(), "_cosine": CosineSpec(encoder="base")}


def measure_lists(result: Result, *, adapters: int, requests: int) -> None:
    """Both databases."""
    for name in ("postgresql", "sqlite"):
        with database(name) as postgres, temporary_server(postgres) as server:
            lists.stock(server, adapters)
            timings = list(lists.timed(server, adapters, requests=requests))
        result.rows += [{"adapters": adapters, **timing.row(name)} for timing in timings]
        for timing in timings:
            if timing.kind in GOALS:
                prefix, goal = ("", GOALS[timing.kind]) if name == "postgresql" else ("sqlite_", None)
                note = f"{name}, {adapters:,} adapters, {requests} requests"
                result.figures[f"{prefix}{timing.kind}_ms_p95"] = Figure(timing.p95, "ms", goal, note=note)


def measure_fits(
    result: Result, *, adapters: int, repeats: int, units: int = UNITS, dimensions: int = DIMENSIONS
) -> None:
    """A pool that is fitted once by each selector, and then grows by one adapter at a time."""
    with (
        tempfile.TemporaryDirectory() as folder,
        pools.shelf(Path(folder), units=units, dimensions=dimensions) as shelf,
    ):
        shelf.fill(pools.FEW, range(adapters + repeats, adapters + repeats + pools.FEW_ADAPTERS))
        shelf.fill(pools.MANY, range(adapters))
        with pools.fits(shelf) as fits:
            for spec in SPECS.values():
                fits.fit(pools.FEW, spec)
            whole = {name: fits.fit(pools.MANY, spec) for name, spec in SPECS.items()}
            added: dict[str, list[float]] = {name: [] for name in SPECS}
            for number in range(adapters, adapters + repeats):
                shelf.fill(pools.MANY, range(number, number + 1))
                for name, spec in SPECS.items():
                    added[name].append(fits.fit(pools.MANY, spec).seconds)
    note = f"{adapters:,} adapters, {units} embeddings of {dimensions} dimensions each"
    for name, fitted in whole.items():
        result.figures[f"fit_10k{name}_s"] = Figure(fitted.seconds, "s", note=f"{note}; once")
        peak = f"beyond {fitted.before:.0f} MiB; {note}"
        result.figures[f"fit_10k{name}_peak_gib"] = Figure(fitted.beyond / 2**10, "GiB", PEAK_GOAL, note=peak)
        result.figures[f"add_one{name}_s"] = repeated(added[name], "s", goal=ADD_GOAL, note=f"to {note}")
        columns = vars(fitted) | {"selector": SPECS[name].kind, "add_one_s": added[name]}
        result.rows.append({"part": "fits", "adapters": adapters, **columns})


def measure_route(
    result: Result, *, adapters: int, requests: int, units: int = UNITS, dimensions: int = DIMENSIONS
) -> None:
    """One prompt after another, by the selector of a pool."""
    with (
        tempfile.TemporaryDirectory() as folder,
        pools.shelf(Path(folder), units=units, dimensions=dimensions) as shelf,
    ):
        shelf.fill(pools.MANY, range(adapters))
        with pools.fits(shelf) as fits:
            fits.fit(pools.MANY, PosteriorSpec())
        first, *choices = prompts.milliseconds(shelf, pools.MANY, range(1 + min(requests, adapters)))
    note = f"{adapters:,} adapters of {dimensions} dimensions, {len(choices)} prompts; {first:.0f} ms for the first one"
    result.figures["route_ms_p95"] = Figure(float(np.percentile(choices, 95)), "ms", ROUTE_GOAL, note=note)
    result.rows.append(
        {"part": "route", "adapters": adapters, "median_ms": float(np.median(choices)), "first_ms": first}
    )


def measure_nearest(result: Result, *, adapters: int, requests: int, dimensions: int = DIMENSIONS) -> None:
    """One passage after another, by a selector over all of them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state"
        nearest.stock(file, adapters, dimensions=dimensions)
        numbers = random.Random(6).sample(range(adapters), min(adapters, requests + 1))
        measurement = nearest.searched(file, dimensions=dimensions, numbers=numbers)
    note = f"{adapters:,} adapters of {dimensions} dimensions, a state of {measurement.state_mib:.0f} MiB"
    result.figures["nearest_ms_p95"] = Figure(float(np.percentile(measurement.milliseconds, 95)), "ms", note=note)
    result.figures["nearest_first_s"] = Figure(measurement.first_s, "s", note=f"read, and ranked once; {note}")
    median = float(np.median(measurement.milliseconds))
    result.rows.append({"part": "nearest", "adapters": adapters, "median_ms": median, "first_s": measurement.first_s})


def measure_pushes(result: Result, *, each: int, repeats: int) -> None:
    """Several clients at once."""
    with temporary_server() as server:
        rates = [
            pushes.rate(server, clients=CLIENTS, each=each, seed=100_000 * (repeat + 1)) for repeat in range(repeats)
        ]
    result.figures["push_many"] = repeated(rates, "pushes/s", note=f"{CLIENTS} clients at once, SQLite")
    result.rows.append({"part": "pushes", "clients": CLIENTS, "each": each, "many_per_s": rates})


def measure_backlog(result: Result, *, in_a_row: int) -> None:
    """Pushes in a row."""
    with temporary_server() as server:
        backlog = pushes.backlog(server, pushes=in_a_row)
    result.rows.append({"part": "backlog", **vars(backlog)})
    note = f"after {in_a_row} pushes in {backlog.seconds:.0f} s, {backlog.done} done meanwhile"
    result.figures["refit_backlog"] = Figure(backlog.to_do, "fits", BACKLOG_GOAL, note=note)


PARTS: Mapping[str, Part] = {
    "pushes": lambda result, arguments: measure_pushes(result, each=EACH, repeats=arguments.repeats),
    "backlog": lambda result, _: measure_backlog(result, in_a_row=IN_A_ROW),
    "fits": lambda result, arguments: measure_fits(result, adapters=arguments.pool, repeats=arguments.repeats),
    "route": lambda result, arguments: measure_route(result, adapters=arguments.pool, requests=arguments.requests),
    "nearest": lambda result, arguments: measure_nearest(
        result, adapters=arguments.adapters, requests=arguments.requests
    ),
    "lists": lambda result, arguments: measure_lists(result, adapters=arguments.adapters, requests=arguments.requests),
}
"""The parts of the measurement, cheapest first."""


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--adapters", type=int, default=ADAPTERS, help="adapters of the catalogue that is listed")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="requests of each kind that are timed")
    parser.add_argument("--pool", type=int, default=POOL, help="adapters of the pool that is fitted")
    run_parts(parser, PARTS)


if __name__ == "__main__":
    main()
