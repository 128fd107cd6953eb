"""The fastest setting of the engine that costs at most 1 % of perplexity, held against PEFT in fp32.

A setting is how a base model is loaded (`SETTINGS`). Each writes 16 rows with 16 LoRAs, in turn with PEFT's batch of
the same in fp32, and scores the text of this project's own pages; `perplexity_cost` is its perplexity over that in
fp32, less 1. A random base model has perplexities that say nothing: give it one that was trained (`--base-folder`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.report import Result, interleaved, options, ratios, repeated, seconds
from benchmarks.subjects import CONTEXT, Given, about, lora_of, page_text, silent
from benchmarks.writing import Rows, Writing, check_told_apart, drawn, peft_of
from demo.results import Figure
from registry.base_model import LoadedBase, load_base
from registry.errors import Internal
from registry.likelihood import scored_tokens, windows
from registry.spec import BaseEntry, Quantization
from service.engine import Engine, ScoreRequest
from service.engine.quantised import quantises
from service.engine.trial import tried

ROWS, TOKENS = 16, 32
MOST_COST = 0.01
GOAL, STRETCH = 4.0, 8.0
PLAIN = "float32"
WINDOWS = 24
"""Of the pages' text that is scored."""


def _loaded(folder: Path, *, dtype: str, quantization: Quantization | None = None) -> LoadedBase:
    """A base model as an entry of the allowlist has it."""
    return load_base(BaseEntry(id=folder.name.lower(), source=str(folder), dtype=dtype, quantization=quantization))


def _start(load: Callable[[Path], LoadedBase], folder: Path) -> None:
    """What the engine does before a base model serves."""
    tried(load(folder))


SETTINGS: dict[str, Callable[[Path], LoadedBase]] = {
    PLAIN: partial(_loaded, dtype="float32"),
    "bfloat16": partial(_loaded, dtype="bfloat16"),
    "int8": partial(_loaded, dtype="float32", quantization="int8"),
    "int8_bfloat16": partial(_loaded, dtype="bfloat16", quantization="int8"),
}
"""Ways to load a base model for the engine; the first is what the others' perplexity is held against."""
if not quantises("cpu"):
    del SETTINGS["int8"], SETTINGS["int8_bfloat16"]


def run(folder: Path, *, rows: int, tokens: int, repeats: int, name: str = "fastest") -> Result:
    """Every setting beside PEFT in fp32."""
    bases = {setting: load(folder) for setting, load in SETTINGS.items()}
    starts = {setting: seconds(partial(_start, load, folder)) for setting, load in SETTINGS.items()}
    costs = perplexity_costs(bases)
    writings = {
        setting: Writing(silent(base), Engine(Given({base.entry.id: silent(base)}), max_rows=rows), rows, tokens)
        for setting, base in bases.items()
    }
    plain = bases[PLAIN]
    loras = drawn(plain, lora_of(plain.shape), rows)
    peft, names = peft_of(plain, loras)
    for one in writings.values():
        one.engine.start()
    try:
        calls: dict[str, Callable[[], Rows]] = {setting: partial(one.ours, loras) for setting, one in writings.items()}
        calls["peft_fp32"] = partial(writings[PLAIN].generate, peft, adapter_names=names)
        alone = writings[PLAIN].ours([None] * rows)
        check_told_apart({"base": alone, **{way: call() for way, call in calls.items()}}, "base", list(calls))

        def redraw(repeat: int) -> None:
            for one in writings.values():
                one.redraw(repeat + 1)

        times = interleaved(calls, repeats=repeats, warm=True, before=redraw)
    finally:
        for one in writings.values():
            one.engine.stop()
    result = _result(bases, times, costs, made=rows * tokens, name=name)
    for setting, taken in starts.items():
        result.figures[f"start_{setting}_s"] = Figure(taken, "s", None, note="loaded, put into its form and tried")
    return result


def perplexity_costs(bases: dict[str, LoadedBase]) -> dict[str, float]:
    """By how much the perplexity of the pages is higher than in fp32, as a share."""
    nats = {setting: _mean_nll(base) for setting, base in bases.items()}
    return {setting: math.exp(found - nats[PLAIN]) - 1 for setting, found in nats.items()}


def _mean_nll(base: LoadedBase) -> float:
    """Nats a token of the pages' text."""
    cut = windows(base.tokenize(page_text(), bos=False), context=min(CONTEXT, base.shape.context), bos_id=base.bos_id)[
        :WINDOWS
    ]
    engine = Engine(Given({base.entry.id: base}))
    engine.start()
    try:
        found = engine.submit(ScoreRequest(base.entry.id, tuple(map(tuple, cut)))).result()
    finally:
        engine.stop()
    return math.fsum(found.nll) / scored_tokens(cut)


def _result(
    bases: dict[str, LoadedBase], times: dict[str, list[float]], costs: dict[str, float], *, made: int, name: str
) -> Result:
    result = Result(name)
    allowed = [setting for setting in bases if costs[setting] <= MOST_COST]
    if not allowed:
        raise Internal(f"no setting costs at most {MOST_COST} of perplexity")
    best = min(allowed, key=lambda setting: median(times[setting]))
    for way, found in times.items():
        result.figures[f"{way}_tokens_per_s"] = repeated([made / one for one in found], "tokens/s")
        result.rows.append(
            {**about(bases.get(way, bases[PLAIN])), "setting": way, "tokens_per_s": made / median(found),
             "perplexity_cost": costs.get(way)}
        )  # fmt: skip
    for setting, cost in costs.items():
        if setting != PLAIN:
            result.figures[f"perplexity_cost_{setting}"] = Figure(cost, "share", MOST_COST, note=f"to {PLAIN}")
    result.figures["mixed_vs_peft_fastest"] = repeated(
        ratios(times["peft_fp32"], times[best]), "ratio", goal=GOAL, stretch=STRETCH,
        note=f"tokens/s in {best} over PEFT in fp32",
    )  # fmt: skip
    return result


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--base-folder", type=Path, required=True, help="a trained base model's folder")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows that are written together, each with an adapter")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens that each row writes")
    given = parser.parse_args()
    name = "fastest" if given.out is None else given.out.stem
    folder = given.base_folder.resolve()
    run(folder, rows=given.rows, tokens=given.tokens, repeats=given.repeats, name=name).finish(given.out)


if __name__ == "__main__":
    main()
