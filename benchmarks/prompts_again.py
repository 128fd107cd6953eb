"""A second request whose prompt begins as an earlier one's did: its time over the first's, by the tokens they share.

The engine keeps what ended sequences computed (docs/decisions/0030) and copies it for a prompt that begins alike. Each
repeat sends new prompts of so many tokens and 8 more, then the same tokens with 8 others, one token generated each; the
second has to take over all that it shares. The base model is a random GPT-2 of the small one's shape.
"""

from __future__ import annotations

import gc
import time
from statistics import median

import torch

from benchmarks.averaging import Size
from benchmarks.report import Result, options, ratios, repeated
from benchmarks.subjects import FULL, Given, random_gpt2, silent
from registry.base_model import LoadedBase
from registry.errors import Internal
from service.engine import Engine, GenerateRequest, SamplingParams

SHARED = (16, 64, 512)
"""Tokens with which both prompts begin; the first is the fewest that are taken over."""
OWN = 8
"""Tokens of each prompt behind those."""
GOAL = 0.25
"""Of the longest."""
KEPT = 2**31
"""Bytes of keys and values: nothing goes while this runs."""


class Asking:
    """An engine, and seeded prompts that it is asked to continue by one token."""

    def __init__(self, base: LoadedBase) -> None:
        self._base = base
        self._draw = torch.Generator().manual_seed(0)
        self.engine = Engine(Given({base.entry.id: base}), kv_bytes=KEPT)
        self.engine.start()

    def pair(self, shared: int) -> tuple[float, float]:
        """Seconds of a first request and of one that shares so many tokens with it; raises Internal if it does not."""
        beginning = self._tokens(shared)
        first, reused = self._answered((*beginning, *self._tokens(OWN)))
        second, taken = self._answered((*beginning, *self._tokens(OWN)))
        if reused or taken < shared:
            raise Internal(f"of {shared} tokens the first request took over {reused} and the second {taken}")
        return first, second

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(torch.randint(5, self._base.shape.vocab_size, (count,), generator=self._draw).tolist())

    def _answered(self, prompt: tuple[int, ...]) -> tuple[float, int]:
        params = SamplingParams(max_tokens=1, temperature=0)
        request = GenerateRequest(self._base.entry.id, prompt, params=params, namespace="benchmark")
        gc.collect()
        start = time.perf_counter()
        found = self.engine.generate(request)
        return time.perf_counter() - start, found.reused


def run(size: Size, *, shared: tuple[int, ...] = SHARED, repeats: int) -> Result:
    """Every length, in turn, after one round that does not count."""
    result = Result("prompts_again")
    asking = Asking(silent(random_gpt2(size, context=max(shared) + OWN + 1)))
    try:
        for length in shared:
            asking.pair(length)
        times = {length: list[tuple[float, float]]() for length in shared}
        for _ in range(repeats):
            for length in shared:
                times[length].append(asking.pair(length))
    finally:
        asking.engine.stop()
    for length, pairs in times.items():
        first, second = [one for one, _ in pairs], [other for _, other in pairs]
        what = {"model": size.name, "shared": length, "own": OWN}
        result.rows.append({**what, "first_ms": 1000 * median(first), "second_ms": 1000 * median(second)})
        goal = GOAL if length == SHARED[-1] else None
        result.figures[f"second_over_first_{length}"] = repeated(
            ratios(second, first), "ratio", goal=goal, note=f"time; {length} tokens shared, {OWN} not"
        )
    return result


def main() -> None:
    """The command line."""
    given = options(__doc__).parse_args()
    run(FULL, repeats=given.repeats).finish(given.out)


if __name__ == "__main__":
    main()
