"""What helper threads cost that wait in the wrong way: the same small products in a thread of each kind of process.

`alone` is the engine's thread as it is: no other thread has helpers, and its own wait awake for a moment. In `crowded`
the main thread has computed before and kept its helper, as every thread of a server did. In `asleep` helpers sleep at
once (OMP_WAIT_POLICY=PASSIVE). Each is a process of its own (`registry.cores`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.report import Result, options, repeated
from registry import cores
from service.settings import SPINS

WAYS = {
    "alone": {"GOMP_SPINCOUNT": SPINS},
    "crowded": {"GOMP_SPINCOUNT": SPINS},
    "asleep": {"OMP_WAIT_POLICY": "PASSIVE"},
}
CALLS = 300
ROWS, HIDDEN, RANK = 16, 576, 8


def products(way: str) -> list[float]:
    """Seconds of each of CALLS pairs of products, as a LoRA's, in a thread that took all cores."""
    torch.ones(1024, 1024).exp()  # the main thread gets a helper
    if way != "crowded":
        cores.send_helpers_away()
    found: list[float] = []
    thread = threading.Thread(target=_pairs, args=(found.append,))
    thread.start()
    thread.join()
    return found


def _pairs(say: Callable[[float], None]) -> None:
    x, a, b = torch.ones(ROWS, HIDDEN), torch.ones(RANK, HIDDEN), torch.ones(HIDDEN, RANK)
    cores.take()
    for number in range(2 * CALLS):
        start = time.perf_counter()
        F.linear(F.linear(x, a), b)
        if number >= CALLS:
            say(time.perf_counter() - start)
    cores.give_back()


def run(*, repeats: int, name: str = "cores") -> Result:
    """Every way in turn, each time in a process of its own."""
    result = Result(name)
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way, variables in WAYS.items():
            kept = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
            done = subprocess.run(
                [sys.executable, "-c", f"from benchmarks import cores; print(*cores.products({way!r}))"],
                env=kept | variables, capture_output=True, text=True, check=True,
            )  # fmt: skip
            taken[way].append(1e6 * median(map(float, done.stdout.split())))
    for way, found in taken.items():
        result.figures[f"{way}_us"] = repeated(found, "us", note=f"a pair of products of {ROWS} rows, by rank {RANK}")
        result.rows.append({"way": way, **WAYS[way], "us": median(found)})
    for way in ("crowded", "asleep"):
        times = [one / other for one, other in zip(taken[way], taken["alone"], strict=True)]
        result.figures[f"{way}_vs_alone"] = repeated(times, "ratio")
    return result


def main() -> None:
    """The command line."""
    given = options(__doc__).parse_args()
    run(repeats=given.repeats, name="cores" if given.out is None else given.out.stem).finish(given.out)


if __name__ == "__main__":
    main()
