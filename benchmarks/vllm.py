"""Bottlenecks in vLLM: the tokens of our engine, their cost beside vLLM's LoRAs, and aliases that move.

vLLM for CPUs runs in its environment (`make bench-peers`) with the plugin of this checkout.

- `answers`: prompts are continued greedily with a bottleneck of each structure, in one batch, in fp32 and bf16. Our
  engine in bf16 is compared with itself in fp32 as well, since rounding alone moves log-probabilities.
- `speed`: 16 rows have a bottleneck or a LoRA each; vLLM has LoRA on those modules only.
- `aliases`: an alias moves between two adapters while texts are requested by it, with vLLM's prefix cache on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from openai import OpenAI

from adaptersoup.client.additions import Additions
from adaptersoup.vllm.lora_files import lora_files
from benchmarks.decoding import VLLM_MODES, prepare
from benchmarks.peers.files import write_peft
from benchmarks.peers.process import ENVIRONMENTS, KINDS, Peer, PeerMissing, PeerSpecs, interpreter, peers
from benchmarks.peers.vllm_server import ServedBase, layers_of, plugin_path, serving_vllm, wait_until
from benchmarks.report import Part, Result, interleaved, options, ratios, repeated, run_parts
from benchmarks.subjects import (
    BOTTLENECK,
    DTYPES,
    RANK,
    CopiedBases,
    Window,
    bottleneck_of,
    chosen_base,
    page_passages,
    rows_of,
    silent,
)
from benchmarks.writing import PROMPT, check_told_apart, drawn
from demo.results import Figure
from demo.server import Server, running, write_bases
from registry.adapters import paper_config
from registry.adapters.bottleneck_lora import Structure
from registry.adapters.weights import save_tensors
from registry.base_model import LoadedBase
from registry.formats import AdapterContents, place_files, write_directory
from registry.spec import BaseEntry, BottleneckConfig
from service.engine import EngineLimits, GenerateRequest, LoadableAdapter, SamplingParams
from service.engine.engine import Engine

STRUCTURES: tuple[Structure, ...] = ("bapna_firat", "pfeiffer", "parallel", "houlsby")
PROMPTS, TEXT, TOKENS = 10, 24, 16
"""Of `answers`: prompts, tokens of each, and tokens written."""
ROWS, ROW_TOKENS = 16, 32
MAX_RANK = 16
"""The least of vLLM's that holds a bottleneck of width 8, which has rank 9."""
MOVES, LONG = 20, 96
"""Of `aliases`: moves, after each of which all prompts are requested, and tokens of a prompt: some blocks."""
MOVE_SECONDS = 120.0
"""The longest wait for a move."""


class Written(NamedTuple):
    """The tokens of a row and their log-probabilities."""

    tokens: Sequence[int]
    log_probabilities: Sequence[float]


def difference(first: Written, second: Written) -> float:
    """The largest difference of log-probabilities up to the first token that differs."""
    rows = zip(first.tokens, second.tokens, first.log_probabilities, second.log_probabilities, strict=True)
    equal = takewhile(lambda row: row[0] == row[1], rows)
    return max((abs(p - q) for _, _, p, q in equal), default=0.0)


# --- the plugin in vLLM's environment -----------------------------------------------------------------------


def write_lora(folder: Path, base: LoadedBase, adapter: LoadableAdapter) -> Path:
    """The directory of a bottleneck as vLLM loads it."""
    assert isinstance(adapter.config, BottleneckConfig)
    place_files(folder, lora_files(adapter.config, save_tensors(adapter.load()), base.shape.model_type))
    return folder


# --- answers ------------------------------------------------------------------------------------------------


ANSWER_FIGURES = {
    ("float32", "vllm"): ("tokens_equal", "log_probability_difference_float32"),
    ("bfloat16", "vllm"): ("tokens_equal_bfloat16", "log_probability_difference"),
    ("bfloat16", "float32"): ("rounding_tokens_equal", "rounding_log_probability_difference"),
}
"""By the dtype of our rows, and what they are compared with."""
GOALS = {"tokens_equal": 1.0, "log_probability_difference": 0.05}


def bottlenecks(base: LoadedBase) -> list[LoadableAdapter]:
    """A bottleneck of each structure."""
    configs = [paper_config(structure, bottleneck=BOTTLENECK) for structure in STRUCTURES]
    return [adapter for config in configs for adapter in drawn(base, config, 1)]


def by_engine(base: LoadedBase, prompts: Sequence[Window], adapters: Sequence[LoadableAdapter]) -> list[Written]:
    """Rows of our engine: each prompt with every adapter."""
    engine = Engine(CopiedBases({base.entry.id: base}), EngineLimits(max_running=len(prompts) * len(adapters)))
    params = SamplingParams(max_tokens=TOKENS, temperature=0, logprobs=0)
    engine.start()
    try:
        tickets = engine.submit_all(
            [GenerateRequest(base.entry.id, prompt, adapter, params) for prompt in prompts for adapter in adapters]
        )
        rows = [ticket.result().choices[0] for ticket in tickets]
    finally:
        engine.stop()
    return [Written(row.token_ids, row.token_logprobs) for row in rows]


def measure_answers(result: Result, folder: Path, environments: Path = ENVIRONMENTS) -> None:
    """Compare our engine's rows with vLLM's, in fp32 and bf16."""
    ours: dict[str, list[Written]] = {}
    for dtype in ("float32", "bfloat16"):
        speaking = chosen_base(folder, dtype)
        prompts = [tuple(speaking.tokenizer(text)["input_ids"][:TEXT]) for text in page_passages(PROMPTS, seed=1)]
        base = silent(speaking)
        adapters = bottlenecks(base)
        ours[dtype] = by_engine(base, prompts, adapters)
        with tempfile.TemporaryDirectory() as scratch:
            paths = [
                str(write_lora(Path(scratch) / str(number), base, adapter)) for number, adapter in enumerate(adapters)
            ]
            kinds, layers = layers_of([adapter.config for adapter in adapters])
            specs: PeerSpecs = {
                "vllm": (
                    "vllm",
                    {
                        "folder": str(folder),
                        "dtype": dtype,
                        "rows": ROWS,
                        "context": TEXT + TOKENS,
                        "rank": MAX_RANK,
                        "loras": paths * len(prompts),
                        "modes": list(VLLM_MODES),
                        "modules": layers,
                        "bottlenecks": kinds,
                        "path": plugin_path(Path(scratch)),
                    },
                )
            }
            with peers(specs, environments) as processes:
                peer = processes["vllm"]
                if isinstance(peer, PeerMissing):
                    result.rows.append({"part": "answers", "dtype": dtype, "missing": str(peer)})
                    continue
                rows = [prompt for prompt in prompts for _ in adapters]
                theirs = [Written(*row) for row in peer.score(rows, TOKENS)]
        _add_answers(result, dtype, "vllm", ours[dtype], theirs)
    if result.figures:
        _add_answers(result, "bfloat16", "float32", ours["bfloat16"], ours["float32"])


def _add_answers(
    result: Result, dtype: str, reference: str, ours: Sequence[Written], theirs: Sequence[Written]
) -> None:
    """Rows by structure, and the figures of our rows in a dtype beside others."""
    pairs = list(zip(ours, theirs, strict=True))
    for number, structure in enumerate(STRUCTURES):
        rows = pairs[number :: len(STRUCTURES)]
        result.rows.append(
            {
                "part": "answers",
                "structure": structure,
                "dtype": dtype,
                "beside": reference,
                "rows": len(rows),
                "equal": sum(tuple(a.tokens) == tuple(b.tokens) for a, b in rows),
                "log_probability_difference": max(difference(a, b) for a, b in rows),
            }
        )
    equal = sum(tuple(a.tokens) == tuple(b.tokens) for a, b in pairs) / len(pairs)
    note = f"{len(pairs)} rows of {TOKENS} tokens, {dtype}" + (
        " beside float32, both by our engine" * (reference != "vllm")
    )
    tokens, log_probabilities = ANSWER_FIGURES[dtype, reference]
    result.figures[tokens] = Figure(equal, "share", GOALS.get(tokens), (), note)
    largest = max(difference(a, b) for a, b in pairs)
    result.figures[log_probabilities] = Figure(largest, "nats", GOALS.get(log_probabilities), (), note)


# --- speed --------------------------------------------------------------------------------------------------


def measure_speed(result: Result, folder: Path, *, dtype: str, repeats: int, environments: Path = ENVIRONMENTS) -> None:
    """Time vLLM's base alone, with a LoRA a row, and with a bottleneck a row, in turn."""
    setting = prepare(chosen_base(folder, dtype), rows=ROWS, more=ROWS, tokens=ROW_TOKENS)
    base = setting.small.base
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        loras = [str(write_peft(scratch / f"lora{n}", base, lora)) for n, lora in enumerate(setting.loras)]
        pairs = [
            str(write_lora(scratch / f"pair{n}", base, bottleneck)) for n, bottleneck in enumerate(setting.bottlenecks)
        ]
        kinds, layers = layers_of([adapter.config for adapter in setting.bottlenecks])
        common = {
            "folder": str(folder),
            "dtype": dtype,
            "rows": ROWS,
            "context": PROMPT + ROW_TOKENS,
            "modes": list(VLLM_MODES),
        }
        targets = sorted({module.rpartition(".")[2] for module in setting.loras[0].config.modules()})  # type: ignore[attr-defined]
        specs: PeerSpecs = {
            "base": ("vllm", {**common, "loras": [], "rank": RANK}),
            "loras": ("vllm", {**common, "loras": loras, "rank": RANK, "modules": targets}),
            "bottlenecks": (
                "vllm",
                {
                    **common,
                    "loras": pairs,
                    "rank": MAX_RANK,
                    "modules": layers,
                    "bottlenecks": kinds,
                    "path": plugin_path(scratch),
                },
            ),
        }
        with peers(specs, environments) as processes:
            missing = {way: str(peer) for way, peer in processes.items() if isinstance(peer, PeerMissing)}
            result.rows += [{"part": "speed", "way": way, "missing": reason} for way, reason in missing.items()]
            if missing:
                return
            calls = {
                way: partial(setting.small.peer, peer) for way, peer in processes.items() if isinstance(peer, Peer)
            }
            check_told_apart({way: call() for way, call in calls.items()}, "base", ("loras", "bottlenecks"))
            times = interleaved(calls, repeats=repeats, warm=True, before_repeat=lambda turn: setting.redraw(turn + 1))
    for way, seconds in times.items():
        rate = ROWS * ROW_TOKENS / median(seconds)
        result.rows.append({"part": "speed", "way": way, "dtype": dtype, "rows": ROWS, "tokens_per_s": rate})
    of_loras = ratios(times["base"], times["loras"])
    note = f"tokens/s over vLLM's base alone, {ROWS} rows, {dtype}; the goal is the ratio of {ROWS} LoRAs"
    result.figures["mixed_vs_base"] = repeated(
        ratios(times["base"], times["bottlenecks"]), "ratio", goal=median(of_loras), note=note
    )
    result.figures["mixed_loras_vs_base"] = repeated(of_loras, "ratio", note=f"{ROWS} LoRAs of rank {RANK} in vLLM")


# --- aliases ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AliasRun:
    """A registry with two versions of a bottleneck, and a vLLM that serves its names."""

    registry: Server
    vllm: OpenAI
    prompts: Sequence[Window]

    def ask(self, model: str, prompt: Window, *, tokens: int = TOKENS) -> tuple[str, str]:
        """The digest that vLLM answers with, and its text."""
        answer = self.vllm.completions.create(
            model=model, prompt=list(prompt), max_tokens=tokens, temperature=0, extra_body={"ignore_eos": True}
        )
        return answer.model, answer.choices[0].text

    def move(self, version: int, digest: str) -> float:
        """Seconds from moving the alias until vLLM answers with the other version."""
        with self.registry.client() as client:
            client.put_alias(NAME, ALIAS, version)
        return wait_until(lambda: self.ask(f"{NAME}@{ALIAS}", self.prompts[0][:1], tokens=1)[0] == digest, MOVE_SECONDS)


NAME, ALIAS = "team/books", "prod"


def measure_aliases(result: Result, folder: Path, *, moves: int = MOVES, environments: Path = ENVIRONMENTS) -> None:
    """Move an alias to and fro; time until vLLM follows, and compare all texts with those of the versions."""
    try:
        interpreter(KINDS["vllm"], environments)
    except PeerMissing as missing:
        result.rows.append({"part": "aliases", "missing": str(missing)})
        return
    base = chosen_base(folder, "float32")
    prompts = rows_of(base, rows=PROMPTS, length=LONG, seed=0)
    with tempfile.TemporaryDirectory() as temporary, alias_run(base, Path(temporary), prompts, environments) as run:
        texts = {version: [run.ask(f"{NAME}@{version}", prompt) for prompt in prompts] for version in (1, 2)}
        seconds, stale, neither = [], 0, 0
        for move in range(moves):
            version = 2 - move % 2
            seconds.append(run.move(version, texts[version][0][0]))
            for number, prompt in enumerate(prompts):
                _, text = run.ask(f"{NAME}@{ALIAS}", prompt)
                right, previous = texts[version][number][1], texts[3 - version][number][1]
                stale += text == previous != right
                neither += text not in {right, previous}
    differ = sum(first[1] != second[1] for first, second in zip(texts[1], texts[2], strict=True))
    tries = moves * len(prompts)
    result.rows.append(
        {
            "part": "aliases",
            "moves": moves,
            "tries": tries,
            "stale": stale,
            "neither": neither,
            "prompts_told_apart": differ,
        }
    )
    result.figures["alias_seen_s"] = Figure(max(seconds), "s", 5.0, tuple(seconds), f"the longest of {moves} moves")
    note = f"texts of the version before, of {tries}; {differ} of {len(prompts)} prompts tell the versions apart"
    result.figures["stale_tokens"] = Figure(stale, "texts", 0, (), note)


@contextmanager
def alias_run(base: LoadedBase, scratch: Path, prompts: Sequence[Window], environments: Path) -> Iterator[AliasRun]:
    """A registry and a vLLM beside it, while open."""
    bases = write_bases(scratch / "bases.toml", BaseEntry(id="base", source=base.entry.source))
    with running(bases, scratch / "registry") as registry:
        with registry.client() as client:
            for version, adapter in enumerate(drawn(base, bottleneck_of(), 2), 1):
                weights = save_tensors(adapter.load())
                contents = AdapterContents(config=adapter.config, weights=weights, domain="books", base_model="base")
                write_directory(scratch / f"version{version}", contents)
                client.push_directory(scratch / f"version{version}", name=NAME, more=Additions(base="base"))
            client.put_alias(NAME, ALIAS, 1)
        served = ServedBase(source=str(base.entry.source), name="base", config=bottleneck_of(), max_rank=MAX_RANK)
        with serving_vllm(served, registry, scratch, environments) as vllm:
            yield AliasRun(registry, vllm, prompts)


# --- the command line ---------------------------------------------------------------------------------------


PARTS: Mapping[str, Part] = {
    "answers": lambda result, arguments: measure_answers(result, arguments.base_folder.resolve()),
    "speed": lambda result, arguments: measure_speed(
        result, arguments.base_folder.resolve(), dtype=arguments.dtype, repeats=arguments.repeats
    ),
    "aliases": lambda result, arguments: measure_aliases(
        result, arguments.base_folder.resolve(), moves=arguments.moves
    ),
}


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--base-folder", type=Path, required=True, help="folder of a Llama, Mistral, Qwen2 or Qwen3")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="dtype of the part speed")
    parser.add_argument("--moves", type=int, default=MOVES, help="moves of the alias")
    run_parts(parser, PARTS)


if __name__ == "__main__":
    main()
