"""The cost of selection in large pools: a fit, one more adapter, a selection.

Pools are Gaussian domains of 100 embeddings with 576 dimensions; `posterior` first, then `cosine`.

- `fit_growth_<kind>`: exponent of the time of a whole fit from the small to the large pool; 1 is linear.
- `add_one_<kind>_s`: from one more adapter's embeddings to a state that can select, in the large pool.
- `select_<kind>_ms`: from a sample's 100 embeddings to the selection, in the large pool, the selector being in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.report import Result, interleaved, options, repeated, seconds
from demo.results import Figure
from registry.errors import Internal
from registry.names import sha256_digest
from registry.selectors import SELECTORS
from registry.selectors.contract import Domain
from registry.selectors.state import dump_state
from registry.spec import CosineSpec, PosteriorSpec

POOLS = (1_000, 10_000)
UNITS, DIMENSIONS = 100, 576
SPECS: Mapping[str, Any] = {"posterior": PosteriorSpec(), "cosine": CosineSpec(encoder="base")}
APART = 0.7
"""Standard deviation of the domains' centres, where that of a domain's units is 1."""


def gaussian_domain(number: int, *, units: int = UNITS, dimensions: int = DIMENSIONS) -> Domain:
    """The domain of this number; the same number, the same vectors."""
    draw = np.random.default_rng(number)
    centre = APART * draw.standard_normal(dimensions, dtype=np.float32)
    vectors = centre + draw.standard_normal((units, dimensions), dtype=np.float32)
    digest = sha256_digest(str(number).encode())
    return Domain(ref=f"team/a{number}@1", digest=digest, domain=f"a{number:06}", vectors=vectors)


def measure(
    result: Result, *, repeats: int, pools: Sequence[int] = POOLS, units: int = UNITS, dimensions: int = DIMENSIONS
) -> None:
    """Fits at each size, and at the largest what one more adapter and a selection take."""
    *domains, new = (gaussian_domain(number, units=units, dimensions=dimensions) for number in range(max(pools) + 1))
    for kind, spec in SPECS.items():
        times: dict[int, float] = {}
        for size in sorted(pools):
            selector = SELECTORS[kind](spec)
            times[size] = seconds(partial(selector.fit, domains[:size]))
            row = {"selector": kind, "adapters": size, "fit_s": times[size]}
            result.rows.append(row | {"held_out_accuracy": selector.report_["held_out_accuracy"]})
        _growth(result, kind, times)
        _changes(result, kind, selector, new, domains, repeats)


def _growth(result: Result, kind: str, times: Mapping[int, float]) -> None:
    small, large = min(times), max(times)
    exponent = math.log(times[large] / times[small]) / math.log(large / small)
    note = f"from {small} to {large} adapters; {times[small]:.3g} s and {times[large]:.3g} s, once each"
    result.figures[f"fit_growth_{kind}"] = Figure(exponent, "exponent", 1.2, note=note)


def _changes(result: Result, kind: str, selector: Any, new: Domain, domains: Sequence[Domain], repeats: int) -> None:
    """One more adapter, one selection; raises Internal in a small pool, where a change is a whole fit."""

    def add() -> int:
        updated = selector.updated([new], [])
        if updated is None:
            raise Internal("the pool was to be updated, and a whole fit is due")
        return len(dump_state(*updated.to_state()))

    sample = np.concatenate([domains[0].vectors[:60], domains[1].vectors[:40]])
    calls: dict[str, Callable[[], object]] = {"add": add, "select": lambda: selector.rank(sample).selection()}
    times = interleaved(calls, repeats=repeats)
    result.figures[f"add_one_{kind}_s"] = repeated(times["add"], "s", goal=1.0, note="the state's bytes included")
    result.figures[f"select_{kind}_ms"] = repeated([1000 * duration for duration in times["select"]], "ms", goal=20.0)
    result.figures[f"state_{kind}_mib"] = Figure(add() / 2**20, "MiB")
    result.rows.append(
        {
            "selector": kind,
            "adapters": len(domains),
            "add_one_s": median(times["add"]),
            "select_ms": 1000 * median(times["select"]),
            "domains": [selector.rank(sample).ranked[0].member.domain],
        }
    )


def main() -> None:
    """The command line."""
    arguments, result = options(__doc__).parse_args(), Result()
    measure(result, repeats=arguments.repeats)
    result.finish(arguments.out)


if __name__ == "__main__":
    main()
