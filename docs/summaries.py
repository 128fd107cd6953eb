"""Tables with figures of one or more results files side by side, with labels for readers.

Called by `docs.figures` for the blocks `<!-- figures:summary:NAME -->`. A page shows the figures that a user decides
by; the results files have all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.markdown import number, table

Result = Mapping[str, Any]
SLOWER = "on a machine half as fast"
"""In the note of a figure that was measured on another machine than the others."""


@dataclass(frozen=True)
class Summary:
    """A column for each results file, by its heading, and a row for each label.

    A row names its figure, or the figure of each column where they have different names. A figure that the file lacks
    leaves its cell empty.
    """

    head: str
    columns: Sequence[tuple[str, str]]
    rows: Mapping[str, str | Sequence[str]]


GENERATION = Summary(
    "figure",
    (
        ("SmolLM2, fp32", "decoding_smollm2_float32"),
        ("SmolLM2, bf16", "decoding_smollm2_bfloat16"),
        ("GPT-2, fp32", "decoding_gpt2"),
    ),
    {
        "base model, 16 rows, tokens/s": "base_tokens_per_s",
        "16 LoRAs, tokens/s": "mixed_tokens_per_s",
        "16 bottlenecks, tokens/s": "mixed_bottlenecks_tokens_per_s",
        "base model, 64 rows, tokens/s": "base_64_tokens_per_s",
        "64 LoRAs, tokens/s": "mixed_64_tokens_per_s",
        "16 LoRAs / base model": "mixed_vs_base",
        "16 bottlenecks / base model": "mixed_bottlenecks_vs_base",
        "64 LoRAs / base model": "mixed_64_vs_base",
        "16 LoRAs / PEFT, fp32": "mixed_vs_peft_fp32",
        "16 LoRAs / PEFT, bf16": "mixed_vs_peft_bf16",
        "16 LoRAs / vLLM": "mixed_vs_vllm",
        "16 bottlenecks / `adapters`": "mixed_vs_adapters",
        "base model / vLLM": "base_vs_vllm",
        "base model / llama.cpp": "base_vs_llama_cpp",
        "base model / transformers": "base_vs_hf",
        "base model / transformers, 64 rows": "base_64_vs_hf",
    },
)
SCORING = Summary(
    "figure",
    (("fp32", "scoring_smollm2_float32"), ("bf16", "scoring_smollm2_bfloat16")),
    {
        "passages, tokens/s": "passages_tokens_per_s",
        "equal blocks / bare forward pass": "score_vs_forward",
        "passages / loop of `evaluate`": "score_vs_evaluate",
    },
)
WORKING_SET = Summary(
    "figure",
    (("value", "working_set_smollm2_bfloat16"),),
    {
        "16 adapters, all loaded, tokens/s": "1x_tokens_per_s",
        "32 adapters / 16 adapters": "working_set_2x",
        "64 adapters / 16 adapters": "working_set_4x",
        "128 adapters / 16 adapters": "working_set_8x",
        "first token, adapter loaded, ms": "warm_first_token_ms",
        "additional time if not loaded, ms": "cold_first_token_ms",
    },
)
HTTP = Summary(
    "figure",
    (
        ("SmolLM2, fp32", "over_http_smollm2_float32"),
        ("SmolLM2, bf16", "over_http_smollm2_bfloat16"),
        ("GPT-2, fp32", "over_http_gpt2"),
    ),
    {
        "32 streams, share of time added": "http_overhead_streams",
        "64 perplexities, share of time added": "http_overhead_scoring",
        "start of `soup serve`, s": "start_s",
        "first token of the first request, ms": "first_token_after_start_ms",
        "first token of later requests, ms": "first_token_ms",
    },
)
TRAINING = Summary(
    "figure",
    (("small GPT-2", "training"), ("SmolLM2", "training_smollm2")),
    {
        "adapter, tokens/s": "tokens_per_s_adapter",
        "adapter / full fine-tuning": "adapter_vs_full",
        "adapter / PEFT's LoRA": "adapter_vs_peft_lora",
        "our LoRA / PEFT's LoRA": "lora_vs_peft_lora",
        "AdaMix, share of time added to a pass": "adamix_overhead",
        "40 % pruned, share of time added": "mask_overhead",
        "peak memory, adapter, MiB": "peak_memory_adapter_mib",
        "peak memory, full fine-tuning, MiB": "peak_memory_full_mib",
    },
)
PAGES = Summary(
    "95th percentile, ms",
    (("PostgreSQL", "registry"), ("SQLite", "registry")),
    {name: (f"{name}_ms_p95", f"sqlite_{name}_ms_p95") for name in ("list", "filter", "search", "resolve")},
)
REGISTRY = Summary(
    "figure",
    (("value", "registry"),),
    {
        "fit `posterior`, s": "fit_10k_s",
        "fit `posterior`, peak memory added, GiB": "fit_10k_peak_gib",
        "add one adapter to `posterior`, s": "add_one_s",
        "fit `cosine`, s": "fit_10k_cosine_s",
        "fit `cosine`, peak memory added, GiB": "fit_10k_cosine_peak_gib",
        "add one adapter to `cosine`, s": "add_one_cosine_s",
        "choose for a prompt, 95th percentile, ms": "route_ms_p95",
        "ten nearest adapters, 95th percentile, ms": "nearest_ms_p95",
        "the first such request, s": "nearest_first_s",
        "pushes per second, 8 clients": "push_many",
        "fits left after 1,000 pushes": "refit_backlog",
    },
)
POOLS = Summary(
    "figure",
    (("`posterior`", "selection"), ("`cosine`", "selection")),
    {
        label: (figure.format("posterior"), figure.format("cosine"))
        for label, figure in {
            "growth of a whole fit from 1,000 to 10,000 domains, exponent": "fit_growth_{}",
            "update for one new adapter, s": "add_one_{}_s",
            "selection, ms": "select_{}_ms",
            "state, MiB": "state_{}_mib",
        }.items()
    },
)
COOKS = Summary(
    "time between tokens, beside a cook / alone",
    (("small base model, 100 passages", "beside_cooks"), ("SmolLM2, 60 passages", "beside_cooks_smollm2")),
    {
        "`quick`, median": "quick_gap",
        "`quick`, 95th percentile": "quick_gap_p95",
        "`tune`, median": "tune_gap",
        "`tune`, 95th percentile": "tune_gap_p95",
    },
)
CLAIMS = Summary(
    "false claims if nothing helps",
    (("share", "acceptance"),),
    {
        "one soup": "claimed_one",
        "best of 2 soups": "claimed_best_of_2",
        "best of 4 soups": "claimed_best_of_4",
        "best of 2 or 4 soups with the margin of one": "claimed_uncounted",
        "one soup, skewed differences": "claimed_skewed",
    },
)
START = Summary(
    "figure",
    (("value", "cold_start"),),
    {
        "`soup --help`, s": "soup_help_s",
        "import of the Python client, s": "import_client_s",
        "start of `soup serve`, CPU s": "serve_ready_cpu_s",
    },
)
SUMMARIES = {
    "generation": GENERATION,
    "scoring": SCORING,
    "loading": WORKING_SET,
    "http": HTTP,
    "training": TRAINING,
    "pages": PAGES,
    "registry": REGISTRY,
    "pools": POOLS,
    "cooks": COOKS,
    "claims": CLAIMS,
    "start": START,
}
"""Tables by the name in the block."""


def lines(folder: Path, name: str) -> list[str]:
    """The table and its source; a file that `folder` lacks has no column."""
    summary = SUMMARIES[name]
    files = list(dict.fromkeys(file for _, file in summary.columns))
    results = {file: _read(path) for file in files if (path := folder / f"{file}.json").is_file()}
    if not results:
        return [f"Not measured yet: there is no `benchmarks/results/{files[0]}.json`."]
    columns = [(place, *column) for place, column in enumerate(summary.columns) if column[1] in results]
    rows = {
        label: [_figure(results[file], figures, place) for place, _, file in columns]
        for label, figures in summary.rows.items()
    }
    all_figures = [figure for figures in rows.values() for figure in figures]
    goals = any(figure.get("goal") is not None for figure in all_figures)
    head = (summary.head, *(heading for _, heading, _ in columns), *(["goal"] if goals else []))
    cells = [(label, *map(_value, figures), *([_goal(figures)] if goals else [])) for label, figures in rows.items()]
    slower = ["", f"† Measured {SLOWER}."] if any(map(_is_slower, all_figures)) else []
    return [*table(head, cells), *slower, "", *sources(results, all_figures)]


def _read(path: Path) -> Result:
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    return result


def _figure(result: Result, names: str | Sequence[str], column: int) -> Result:
    """The figure of a row in a column; empty if it was not measured."""
    figure: Result = result["figures"].get(names if isinstance(names, str) else names[column], {})
    return figure


def _value(figure: Result) -> str:
    return number(figure.get("value")) + (" †" if _is_slower(figure) else "")


def _is_slower(figure: Result) -> bool:
    return SLOWER in str(figure.get("note", ""))


def _goal(figures: Sequence[Result]) -> str:
    """The goals of a row's figures, each once."""
    return ", ".join(dict.fromkeys(filter(None, (number(figure.get("goal")) for figure in figures))))


def sources(results: Mapping[str, Result], figures: Sequence[Result] = ()) -> list[str]:
    """The results files with date, commit and machine; files of one run are named together.

    A figure that is newer than the rest of its file adds its own commit.
    """
    files: dict[str, list[str]] = {}
    for name, result in results.items():
        files.setdefault(_provenance(result), []).append(f"`benchmarks/results/{name}.json`")
    newer = dict.fromkeys(str(figure["commit"])[:12] for figure in figures if "commit" in figure)
    also = f" Newer figures: commit {', '.join(newer)}." if newer else ""
    runs = "; ".join(f"{', '.join(names)}, {run}" for run, names in files.items())
    return [f"Source: {runs}.{also}"]


def _provenance(result: Result) -> str:
    """The date, commit and machine of a run."""
    machine = result.get("machine") or {}
    fields = [
        str(result["date"])[:10],
        f"commit {result['commit'][:12]}" if result.get("commit") else "",
        str(machine.get("processor") or ""),
        f"{machine['cores']} cores" if machine.get("cores") else "",
    ]
    return ", ".join(filter(None, fields))
