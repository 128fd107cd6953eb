"""What it takes to score many adapters on one sample: all of them asked at once, and one call after the other.

As a cook does that looks for the best of a pool. `candidates_vs_singles` is the time of the single calls over that of
the one with all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from benchmarks.report import Result, interleaved, options, ratios, repeated
from benchmarks.subjects import (
    QUICK,
    Given,
    Window,
    about,
    base_options,
    bottleneck_of,
    chosen_base,
    lora_of,
    passages,
    random_gpt2,
)
from benchmarks.writing import drawn
from registry.base_model import LoadedBase
from registry.errors import Internal
from service.engine import Engine, LoadableAdapter, ScoreRequest

CANDIDATES, PASSAGES = 21, 16
GOAL, STRETCH = 1.3, 2.0
TOLERANCE = {"float32": 1e-3, "bfloat16": 2e-2}
"""Of a row's nats: by how much the two ways may differ."""


@dataclass
class Setting:
    """A base model, an engine that has it, candidates, and a sample that is drawn anew for each repeat."""

    base: LoadedBase
    engine: Engine
    candidates: Sequence[LoadableAdapter]
    count: int
    sample: list[Window] = field(default_factory=list)

    def redraw(self, seed: int) -> None:
        """Another sample."""
        self.sample = passages(self.base, rows=self.count, seed=seed)

    def together(self) -> list[float]:
        """NLL of every row under every candidate, asked at once."""
        tickets = self.engine.submit_all([self._request(one) for one in self.candidates])
        return [nats for ticket in tickets for nats in ticket.result().nll]

    def singly(self) -> list[float]:
        """The same, the next asked when the one before has answered."""
        return [nats for one in self.candidates for nats in self.engine.submit(self._request(one)).result().nll]

    def _request(self, adapter: LoadableAdapter) -> ScoreRequest:
        return ScoreRequest(self.base.entry.id, tuple(self.sample), adapter)


def run(base: LoadedBase, *, candidates: int, rows: int, repeats: int, name: str = "candidates") -> Result:
    """LoRAs and bottlenecks, each both ways."""
    result = Result(name)
    engine = Engine(Given({base.entry.id: base}), bank_bytes=2**40)
    engine.start()
    try:
        for kind, config in (("lora", lora_of(base.shape)), ("bottleneck", bottleneck_of())):
            setting = Setting(base, engine, drawn(base, config, candidates), rows)
            setting.redraw(0)
            check(setting)
            calls: dict[str, Callable[[], object]] = {"together": setting.together, "singly": setting.singly}
            times = interleaved(calls, repeats=repeats, warm=True, before=partial(_redraw, setting))
            what = {**about(base), "method": kind, "candidates": candidates, "passages": rows}
            result.rows += [what | {"way": way, "wall_s": median(found)} for way, found in times.items()]
            ending = "" if kind == "lora" else f"_{kind}"
            result.figures[f"candidates_vs_singles{ending}"] = repeated(
                ratios(times["singly"], times["together"]), "ratio", goal=GOAL, stretch=STRETCH,
                note=f"time; {candidates} adapters on {rows} passages, one call to {candidates} calls",
            )  # fmt: skip
    finally:
        engine.stop()
    return result


def _redraw(setting: Setting, repeat: int) -> None:
    setting.redraw(repeat + 1)


def check(setting: Setting) -> None:
    """Both ways give the same, and candidates differ; raises Internal."""
    one, other = setting.together(), setting.singly()
    apart = max(abs(a - b) / b for a, b in zip(one, other, strict=True))
    if apart > TOLERANCE[setting.base.entry.dtype]:
        raise Internal(f"asked at once and singly, a row differs by {apart} of its nats")
    rows = len(setting.sample)
    if len({round(sum(one[start : start + rows]), 3) for start in range(0, len(one), rows)}) < len(setting.candidates):
        raise Internal("two candidates score the same")


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    base_options(parser)
    parser.add_argument("--quick", action="store_true", help="a GPT-2 of 4 layers of 256 instead of the small one")
    parser.add_argument("--candidates", type=int, default=CANDIDATES)
    parser.add_argument("--rows", type=int, default=PASSAGES, help="passages of the sample")
    given = parser.parse_args()
    base = random_gpt2(QUICK, dtype=given.dtype) if given.quick else chosen_base(given.base_folder, given.dtype)
    name = "candidates" if given.out is None else given.out.stem
    run(base, candidates=given.candidates, rows=given.rows, repeats=given.repeats, name=name).finish(given.out)


if __name__ == "__main__":
    main()
