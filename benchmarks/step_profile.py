"""Where the time of a step goes that writes a token for each of 16 rows: seconds of the processor by kind of operation.

With no adapter, and with a LoRA for each row. torch's profiler counts each operation without those it calls; it takes
about a microsecond for each itself, so shares of small operations are upper bounds. `step_ms` is taken without it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from torch.profiler import ProfilerActivity, profile

from benchmarks.report import Result, options, repeated
from benchmarks.subjects import Given, about, base_options, chosen_base, lora_of, silent
from benchmarks.writing import Writing, drawn
from registry import cores
from registry.base_model import LoadedBase
from service.engine import Engine, GenerateRequest, LoadableAdapter, SamplingParams

ROWS, STEPS = 16, 20
KINDS = {
    "products of the base": ("mkldnn", "addmm", "aten::mm", "_linear", "onednn"),
    "products of adapters": ("bmm",),
    "attention": ("scaled_dot_product", "flash_attention"),
    "copies": ("copy_", "cat", "index", "clone", "fill_", "zero_"),
}
"""By what an operation's name holds; whatever has none of it is a small operation of the model's own code."""
OTHERS = "other operations"


def run(base: LoadedBase, *, rows: int, steps: int, repeats: int, name: str = "step_profile") -> Result:
    """Both kinds of batch, in turn."""
    result = Result(name)
    cores.take()
    loras = drawn(base, lora_of(base.shape), rows)
    batches: dict[str, Sequence[LoadableAdapter | None]] = {"base": [None] * rows, "mixed": loras}
    for kind, adapters in batches.items():
        times: list[float] = []
        shares: list[dict[str, float]] = []
        counts: list[int] = []
        for repeat in range(repeats):
            engine = _decoding(base, adapters, steps=3 * steps, seed=repeat)
            began = time.perf_counter()
            for _ in range(steps):
                engine.step()
            times.append(1e3 * (time.perf_counter() - began) / steps)
            with profile(activities=[ProfilerActivity.CPU]) as seen:
                for _ in range(steps):
                    engine.step()
            taken: dict[str, float] = dict.fromkeys([*KINDS, OTHERS], 0.0)
            averages = seen.key_averages()
            for one in averages:
                taken[_kind(one.key)] += one.self_cpu_time_total
            total = sum(taken.values())
            shares.append({what: some / total for what, some in taken.items()})
            counts.append(sum(one.count for one in averages) // steps)
        result.figures[f"{kind}_step_ms"] = repeated(times, "ms", note=f"{rows} rows")
        result.figures[f"{kind}_operations"] = repeated(counts, "a step", note="calls of torch, inner ones included")
        for what in taken:
            found = [one[what] for one in shares]
            result.figures[f"{kind}_{what.replace(' ', '_')}"] = repeated(
                found, "share", note="of the operations' time"
            )
        middle = {what: median(one[what] for one in shares) for what in taken}
        result.rows.append({**about(base), "batch": kind, "rows": rows, "step_ms": median(times), **middle})
    cores.give_back()
    return result


def _decoding(base: LoadedBase, adapters: Sequence[LoadableAdapter | None], *, steps: int, seed: int) -> Engine:
    """An engine without its thread, whose every step is one token for each row."""
    engine = Engine(Given({base.entry.id: base}), bank_bytes=2**40, max_rows=len(adapters))
    prompts = Writing(base, engine, len(adapters), steps)
    prompts.redraw(seed)
    params = SamplingParams(max_tokens=steps, temperature=0)
    asked = zip(prompts.prompts, adapters, strict=True)
    engine.submit_all([GenerateRequest(base.entry.id, row, one, params) for row, one in asked])
    while engine.counters()["generated_tokens_total"] < 2 * len(adapters):
        engine.step()
    return engine


def _kind(operation: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in operation for part in parts)), OTHERS)


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    base_options(parser)
    given = parser.parse_args()
    base = silent(chosen_base(given.base_folder, given.dtype))
    name = "step_profile" if given.out is None else given.out.stem
    run(base, rows=ROWS, steps=STEPS, repeats=given.repeats, name=name).finish(given.out)


if __name__ == "__main__":
    main()
