"""The effect of running cooks on the latency of streams.

A server has the bank of adapters; one client reads a stream, token by token, while another client cooks.

- `quick_gap`, `tune_gap`: the median time between two tokens of the stream while such a cook runs, over the same with
  none, just before; `..._gap_p95` of their 95th percentiles. The second cook of a kind is measured, when the process
  for gradients is running, as for any second cook within a minute.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.report import Result, repeated
from benchmarks.soups.setting import LARGEST, LONGEST, TEST, Lengths, Setting, bank_options, opened
from registry.errors import Internal
from registry.spec import CookRequest

EFFORTS = ("quick", "tune")
GAP_GOAL = 2.0
TOKENS = 64
"""Of each stream; one follows the other for as long as something is measured."""
LEAST_GAPS = 100
"""Between tokens, of a stream that is measured alone."""
PROMPT = "The"


def gaps(setting: Setting, going_on: Callable[[int], bool]) -> list[float]:
    """Seconds between tokens of consecutive streams, until `going_on` returns False for their number."""
    intervals: list[float] = []
    while going_on(len(intervals)):
        last = None
        for chunk in setting.client.stream(setting.base, PROMPT, max_tokens=TOKENS, temperature=1):
            now = time.perf_counter()
            if chunk["choices"]:
                intervals += [] if last is None else [now - last]
                last = now
            if not going_on(len(intervals)):
                break
    return intervals


def cook(setting: Setting, effort: str) -> None:
    """Run one cook to its end, for newly drawn passages: an earlier recipe would be answered from the store."""
    texts = setting.sample(setting.job.novel[0], size=setting.largest, seed=secrets.randbits(31))
    sample = setting.client.sample(texts)
    setting.client.cook(CookRequest.model_validate({"sample": sample, "effort": effort}))


def beside(setting: Setting, effort: str, repeats: int, result: Result) -> None:
    """The stream alone and while a cook of this effort runs, in turn."""
    cook(setting, effort)
    middles: list[float] = []
    tails: list[float] = []
    for repeat in range(repeats):
        alone = gaps(setting, lambda so_far: so_far < LEAST_GAPS)
        with ThreadPoolExecutor(1) as executor:
            cooking = executor.submit(cook, setting, effort)
            busy = gaps(setting, partial(_goes_on, cooking))
            cooking.result()
        if len(busy) < TOKENS:
            raise Internal(f"The cook was over after {len(busy)} tokens of the stream: too few to say anything.")
        for way, intervals in (("alone", alone), (f"beside {effort}", busy)):
            result.rows.append(
                {
                    "way": f"stream, {way}",
                    "repeat": repeat,
                    "count": len(intervals),
                    "median_ms": 1000 * float(np.median(intervals)),
                    "p95_ms": 1000 * float(np.quantile(intervals, 0.95)),
                    "most_ms": 1000 * max(intervals),
                }
            )
        middles.append(float(np.median(busy) / np.median(alone)))
        tails.append(float(np.quantile(busy, 0.95) / np.quantile(alone, 0.95)))
    note = f"time between tokens of one stream beside a cook of {setting.largest} passages over the same alone"
    result.figures[f"{effort}_gap"] = repeated(middles, "ratio", goal=GAP_GOAL, note=f"{note}; medians")
    result.figures[f"{effort}_gap_p95"] = repeated(tails, "ratio", note="the same of 95th percentiles")


def _goes_on(cooking: Future[None], _gaps: int) -> bool:
    return not cooking.done()


def main() -> None:
    """The command line."""
    parser = bank_options(__doc__, home=Path(".reproduce/beside_cooks"))
    parser.add_argument("--longest", type=int, default=LONGEST, help="characters that passages are cut to")
    parser.add_argument("--largest", type=int, default=LARGEST, help="passages of a sample")
    arguments = parser.parse_args()
    lengths = Lengths(TEST, arguments.largest, arguments.longest)
    result = Result()
    with opened(arguments.data, arguments.base, arguments.adapters, arguments.home, lengths) as setting:
        for effort in EFFORTS:
            beside(setting, effort, arguments.repeats, result)
    result.finish(arguments.out)


if __name__ == "__main__":
    main()
