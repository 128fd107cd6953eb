"""Decoding speed with many adapters: tokens per second with one adapter for all rows, one for each row, and none.

Compared with transformers' `generate` (base model only), PEFT's batches of mixed adapters (`adapter_names`), and the
`adapters` library (bottlenecks of as many parameters, BatchSplit). For the Llama shape also with vLLM on the CPU and
llama.cpp's server (base model only). All decode greedily, in the same dtype, in one run. Peers with their own
environment (`make bench-peers`) are processes that are stopped between their turns; the row of a missing peer gives the
reason.

Before the timing, all engines must generate the same tokens in fp32. In bf16 near-ties may be broken differently, so
only the effect of the adapters is checked. Each repeat has new prompts. Rates are of whole requests, including prompts.
The base model is a random GPT-2 with the shape of GPT-2 small, or any folder (`--base-folder`), such as SmolLM2's that
`make demo` leaves in `.demo/models`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, median_high
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benchmarks.peers.files import write_gguf, write_peft
from benchmarks.peers.process import ENVIRONMENTS, Peer, PeerMissing, Peers, PeerSpecs, peers
from benchmarks.report import Result, interleaved, options, ratios, repeated
from benchmarks.subjects import (
    BOTTLENECK,
    RANK,
    CopiedBases,
    about,
    base_options,
    bottleneck_of,
    chosen_base,
    lora_of,
    silent,
)
from benchmarks.writing import PROMPT, Rows, Writing, check_same, check_told_apart, drawn, peft_of
from demo.results import Figure
from registry.base_model import LoadedBase
from service.engine import EngineLimits, LoadableAdapter
from service.engine.engine import Engine

ROWS, MORE_ROWS, TOKENS = 16, 64, 32
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
COUNTED_TOKENS = 8
"""Tokens of each row in the count of operations."""
OWN_PROCESS = ("adapters", "vllm", "vllm_lora", "llama_cpp")
"""Peers that run in their own process."""
VLLM_MODES = ("processes",)
"""vLLM's fastest mode on two cores (`benchmarks.peers.vllm_cpu`)."""

GOALS = {
    "base_vs_hf": (1.3, 1.8),
    "base_64_vs_hf": (1.5, 2.5),
    "mixed_vs_base": (0.9, 0.97),
    "mixed_64_vs_base": (0.85, 0.95),
    "mixed_vs_peft_fp32": (1.8, 2.5),
    "mixed_vs_peft_bf16": (3.5, 6.0),
    "mixed_vs_adapters": (1.4, 1.8),
    "mixed_vs_vllm": (2.0, 3.5),
    "base_vs_vllm": (1.0, 1.6),
}
"""Goal and stretch of ratios of tokens per second."""
OPERATIONS_GOAL = 2500
"""Most operations of torch in a decode step of the base model alone, for a model of 30 layers."""


@dataclass(frozen=True)
class Setting:
    """Rows of some adapters each, and many rows more of as many adapters."""

    small: Writing
    more: Writing
    loras: Sequence[LoadableAdapter]
    bottlenecks: Sequence[LoadableAdapter]

    def redraw(self, repeat: int) -> None:
        """Other prompts."""
        for writing in (self.small, self.more):
            writing.redraw(repeat)

    def calls(self, processes: Peers) -> dict[str, Callable[[], Rows]]:
        """All engines that are installed."""
        small, more, loras = self.small, self.more, self.loras[: self.small.rows]
        peft, names = peft_of(small.base, loras)
        calls: dict[str, Callable[[], Rows]] = {
            "base": partial(small.ours, [None] * small.rows),
            "one_lora": partial(small.ours, [loras[0]] * small.rows),
            "mixed": partial(small.ours, loras),
            "mixed_bottlenecks": partial(small.ours, self.bottlenecks),
            "transformers": partial(small.generate, small.base.model),
            "peft": partial(small.generate, peft, adapter_names=names),
        }
        calls |= {name: partial(small.peer, peer) for name, peer in processes.items() if isinstance(peer, Peer)}
        return calls | {
            "base_more": partial(more.ours, [None] * more.rows),
            "mixed_more": partial(more.ours, self.loras),
            "transformers_more": partial(more.generate, more.base.model),
        }

    def rows_of(self, way: str) -> int:
        """How many rows a way writes."""
        return self.more.rows if way.endswith("_more") else self.small.rows


def prepare(base: LoadedBase, *, rows: int, more: int, tokens: int) -> Setting:
    """An engine that is not started, prompts and adapters."""
    base = silent(base)
    engine = Engine(
        CopiedBases({base.entry.id: base}), EngineLimits(max_running=max(rows, more), adapter_cache_bytes=2**40)
    )
    small, many = (Writing(base, engine, count, tokens) for count in (rows, more))
    return Setting(small, many, drawn(base, lora_of(base.shape), max(rows, more)), drawn(base, bottleneck_of(), rows))


def peer_specs(setting: Setting, folder: Path | None, scratch: Path, modes: Sequence[str] = VLLM_MODES) -> PeerSpecs:
    """The processes for this base model, and what each starts with; files that they read are written to `scratch`."""
    base, rows = setting.small.base, setting.small.rows
    if folder is None:
        folder = scratch / "base"
        base.model.save_pretrained(folder)
    common: dict[str, Any] = {"folder": str(folder), "dtype": base.entry.dtype, "rows": rows}
    size = sum(tensor.numel() for tensor in setting.bottlenecks[0].load().values())
    form = {"hidden": base.shape.hidden_size, "bottleneck": BOTTLENECK, "parameters": size}
    specs: dict[str, tuple[str, Mapping[str, Any]]] = {"adapters": ("adapters", common | form)}
    if base.shape.model_type == "llama":
        context = PROMPT + setting.small.tokens
        paths = [str(write_peft(scratch / f"lora{n}", base, lora)) for n, lora in enumerate(setting.loras[:rows])]
        vllm = common | {"context": context, "rank": RANK, "loras": [], "modes": list(modes)}
        file = write_gguf(scratch / "base.gguf", base)
        server = {"file": str(file), "dtype": base.entry.dtype, "rows": rows, "context": context}
        specs |= {
            "vllm": ("vllm", vllm),
            "vllm_lora": ("vllm", vllm | {"loras": paths}),
            "llama_cpp": ("llama_cpp", server),
        }
    return specs


def run(
    base: LoadedBase,
    *,
    rows: int,
    more: int,
    tokens: int,
    repeats: int,
    folder: Path | None = None,
    ways: Sequence[str] = OWN_PROCESS,
    modes: Sequence[str] = VLLM_MODES,
    environments: Path = ENVIRONMENTS,
) -> Result:
    """Measure all engines in turn; `ways` are the requested peers, `modes` those of vLLM."""
    setting = prepare(base, rows=rows, more=more, tokens=tokens)
    counts = {
        "operations": operations(setting.small, [None] * rows),
        "operations_mixed": operations(setting.small, setting.loras[:rows]),
    }
    with tempfile.TemporaryDirectory() as scratch:
        specs = {way: spec for way, spec in peer_specs(setting, folder, Path(scratch), modes).items() if way in ways}
        with peers(specs, environments) as processes:
            calls = setting.calls(processes)
            check({way: call() for way, call in calls.items()}, exact=base.entry.dtype == "float32")
            times = interleaved(calls, repeats=repeats, warm=True, before_repeat=lambda turn: setting.redraw(turn + 1))
            return _result(setting, times, processes, counts)


def operations(writing: Writing, adapters: Sequence[LoadableAdapter | None]) -> int:
    """Operations of torch in a step that decodes all rows, as its profiler counts them, with those that they call."""
    writing.submit(adapters, COUNTED_TOKENS)
    counts: list[int] = []
    more = True
    while more:
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            more = writing.engine.step()
        counts.append(len(recorded.events()))
    return median_high(counts)


def check(written: Mapping[str, Rows], *, exact: bool) -> None:
    """Check that the compared engines generate the same tokens, and that adapters change those of the base; raises
    Internal.
    """
    same = [("base", engine) for engine in ("transformers", "vllm", "llama_cpp")]
    same += [("mixed", engine) for engine in ("peft", "vllm_lora")]
    check_same(written, [*same, ("base_more", "transformers_more")], exact=exact)
    check_told_apart(written, "base", ("one_lora", "mixed", "mixed_bottlenecks", "peft", "adapters", "vllm_lora"))
    check_told_apart(written, "base_more", ("mixed_more",))


def _result(setting: Setting, times: Mapping[str, list[float]], processes: Peers, counts: Mapping[str, int]) -> Result:
    result = Result()
    for counted, count in counts.items():
        bound = OPERATIONS_GOAL if counted == "operations" else None
        note = f"in a decode step of {setting.small.rows} rows"
        result.figures[counted] = Figure(count, "operations", bound, note=note)
    base_fields = about(setting.small.base)
    for way, wall_seconds in times.items():
        tokens = setting.rows_of(way) * setting.small.tokens
        result.figures[f"{_named(setting, way)}_tokens_per_s"] = repeated(
            [tokens / duration for duration in wall_seconds], "tokens/s"
        )
        peer = processes.get(way)
        versions = ", ".join(" ".join(package) for package in peer.versions.items()) if isinstance(peer, Peer) else None
        row = {"way": _named(setting, way), "rows": setting.rows_of(way), "wall_s": median(wall_seconds)}
        result.rows.append(
            {**base_fields, **row, "tokens_per_s": tokens / median(wall_seconds), "versions": versions, "missing": None}
        )
    for way, peer in processes.items():
        if isinstance(peer, PeerMissing):
            result.rows.append({**base_fields, "way": way, "rows": setting.rows_of(way), "missing": str(peer)})
    for figure, theirs, ours in _compared(setting):
        if theirs in times:
            goal, stretch = GOALS.get(figure, (None, None))
            note = f"tokens/s; {setting.rows_of(ours)} rows"
            speed_ratios = ratios(times[theirs], times[ours])
            result.figures[figure] = repeated(speed_ratios, "ratio", goal=goal, stretch=stretch, note=note)
    return result


def _named(setting: Setting, way: str) -> str:
    """A way as figures call it."""
    return way.replace("_more", f"_{setting.more.rows}")


def _compared(setting: Setting) -> list[tuple[str, str, str]]:
    """(figure, the peer, our engine's way)."""
    more = setting.more.rows
    return [
        ("base_vs_hf", "transformers", "base"),
        (f"base_{more}_vs_hf", "transformers_more", "base_more"),
        ("one_vs_base", "base", "one_lora"),
        ("mixed_vs_base", "base", "mixed"),
        (f"mixed_{more}_vs_base", "base_more", "mixed_more"),
        ("mixed_bottlenecks_vs_base", "base", "mixed_bottlenecks"),
        (f"mixed_vs_peft_{SHORT[setting.small.base.entry.dtype]}", "peft", "mixed"),
        ("mixed_vs_adapters", "adapters", "mixed_bottlenecks"),
        ("mixed_vs_vllm", "vllm_lora", "mixed"),
        ("base_vs_vllm", "vllm", "base"),
        ("base_vs_llama_cpp", "llama_cpp", "base"),
    ]


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    base_options(parser)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows that are written together, each with an adapter")
    parser.add_argument("--more-rows", type=int, default=MORE_ROWS, help="rows of the larger batch")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens that each row writes")
    parser.add_argument("--peers", nargs="*", choices=OWN_PROCESS, default=OWN_PROCESS, help="processes to measure too")
    parser.add_argument(
        "--vllm", nargs="*", choices=("compiled", "processes"), default=VLLM_MODES, help="modes of vLLM"
    )
    arguments = parser.parse_args()
    folder = None if arguments.base_folder is None else arguments.base_folder.resolve()
    run(
        chosen_base(folder, arguments.dtype),
        rows=arguments.rows,
        more=arguments.more_rows,
        tokens=arguments.tokens,
        repeats=arguments.repeats,
        folder=folder,
        ways=arguments.peers,
        modes=arguments.vllm,
    ).finish(arguments.out)


if __name__ == "__main__":
    main()
