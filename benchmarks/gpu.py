"""Decoding with many adapters on one device, from random weights: nothing is downloaded.

For each shape: tokens per second of the base model alone and of batches of distinct LoRAs and bottlenecks, beside
transformers' `generate` and PEFT's batches of mixed adapters, the bytes of an adapter on the device, and the share of
the memory's bandwidth that the base model alone reaches. In fp32, a small model must generate the same tokens on the
device and on the CPU.

No figure of a GPU exists yet, and CUDA graphs are not used. On a GPU run `python -m benchmarks.gpu --out gpu.json`; on
a CPU add `--device cpu --shapes small --rows 4 --distinct 1 4`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig

from benchmarks.report import Result, interleaved, options, ratios, repeated
from benchmarks.subjects import CopiedBases, lora_of, random_base, silent
from benchmarks.writing import Rows, Writing, check_same, drawn, peft_of
from demo.results import Figure
from registry.adapters import paper_config
from registry.base_model import LoadedBase
from registry.spec import AdapterConfig, BaseEntry
from service.engine import LoadableAdapter
from service.engine.engine import Engine
from service.engine.limits import EngineLimits

SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
    "smollm2": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
    },
    "llama_1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "llama_8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}
RANK, BOTTLENECK = 16, 64
ROWS, DISTINCT = (64, 256), (1, 16, 64, 256)
TOKENS = 32
COPIED_BYTES = 2**28
"""Bytes that are copied to measure the memory's bandwidth."""


def random_llama(name: str, dtype: str, device: str) -> LoadedBase:
    """A Llama of one of SHAPES with random weights and no tokenizer."""
    config = LlamaConfig(**SHAPES[name], bos_token_id=0, eos_token_id=0, tie_word_embeddings=name == "smollm2")
    entry = {"id": name.replace("_", "-"), "source": name, "dtype": dtype, "device": device}
    return silent(random_base(config, BaseEntry.model_validate(entry)))


def measure(
    result: Result, name: str, *, device: str, rows: Sequence[int], distinct: Sequence[int], repeats: int
) -> None:
    """Add the figures of one shape in bf16 to `result`."""
    base = random_llama(name, "bfloat16", device)
    limits = EngineLimits(max_requests=max(rows), max_running=max(rows), adapter_cache_bytes=2**40)
    engine = Engine(CopiedBases({base.entry.id: base}), limits)
    configs: dict[str, AdapterConfig] = {
        "loras": lora_of(base.shape, rank=RANK),
        "bottlenecks": paper_config("bapna_firat", bottleneck=BOTTLENECK),
    }
    adapters = {kind: drawn(base, config, max(distinct)) for kind, config in configs.items()}
    for kind, (first, *_) in adapters.items():
        result.figures[f"{name}_{kind}_bytes"] = Figure(first.size_bytes, "bytes", note="of one adapter in fp32")
    for count in rows:
        writing = Writing(base, engine, count, TOKENS)
        calls = _calls(writing, adapters, [number for number in distinct if number <= count])
        _add(result, name, writing, interleaved(calls, repeats=repeats))


def _calls(
    writing: Writing, adapters: Mapping[str, Sequence[LoadableAdapter]], distinct: Sequence[int]
) -> dict[str, Callable[[], Rows]]:
    """Ways to generate all rows, by name."""
    base, count = writing.base, writing.rows
    peft, names = peft_of(base, adapters["loras"][: max(distinct)])
    calls: dict[str, Callable[[], Rows]] = {
        "base": partial(writing.ours, [None] * count),
        "transformers": partial(writing.generate, base.model),
        f"peft_{max(distinct)}": partial(writing.generate, peft, adapter_names=_spread(names, count)),
    }
    for kind, kind_adapters in adapters.items():
        calls |= {
            f"{kind}_{number}": partial(writing.ours, _spread(kind_adapters[:number], count)) for number in distinct
        }
    return calls


def _spread(values: Sequence[Any], count: int) -> list[Any]:
    """`count` values, in turn."""
    return [values[number % len(values)] for number in range(count)]


def _add(result: Result, name: str, writing: Writing, times: dict[str, list[float]]) -> None:
    count, tokens = writing.rows, writing.rows * TOKENS
    for way, wall_seconds in times.items():
        figure = f"{name}_{way}_rows_{count}"
        result.figures[f"{figure}_tokens_per_s"] = repeated(
            [tokens / duration for duration in wall_seconds], "tokens/s"
        )
        if way != "base":
            result.figures[f"{figure}_vs_base"] = repeated(ratios(times["base"], wall_seconds), "ratio")
        result.rows.append({"shape": name, "way": way, "rows": count, "wall_s": median(wall_seconds)})
    weights = sum(parameter.nbytes for parameter in writing.base.model.parameters())
    bound = weights * TOKENS / bandwidth(writing.base.model.device)  # each step reads all weights
    result.figures[f"{name}_base_rows_{count}_vs_bandwidth"] = Figure(bound / median(times["base"]), "ratio")


def bandwidth(device: torch.device) -> float:
    """Bytes per second that the device's memory reads and writes, by copying."""
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(5):
        _finish(device)
        start = time.perf_counter()
        target.copy_(source)
        _finish(device)
        seconds.append(time.perf_counter() - start)
    return 2 * COPIED_BYTES / min(seconds)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check_tokens(device: str) -> None:
    """Raise Internal if rows of the small shape get other tokens on the device than on the CPU in fp32."""
    written: dict[str, Rows] = {}
    for where in ("cpu", device):
        base = random_llama("small", "float32", "cpu")
        adapters: list[LoadableAdapter | None] = [None, *drawn(base, lora_of(base.shape, rank=RANK), 3)]
        base.model.to(where)
        engine = Engine(CopiedBases({base.entry.id: base}), EngineLimits())
        written[where] = Writing(base, engine, len(adapters), TOKENS).ours(adapters)
    check_same(written, [("cpu", device)], exact=True)


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, default=["smollm2", "llama_1b", "llama_8b"])
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--distinct", nargs="*", type=int, default=DISTINCT, help="numbers of adapters in a batch")
    arguments = parser.parse_args()
    run(arguments.device, arguments.shapes, arguments.rows, arguments.distinct, arguments.repeats).finish(arguments.out)


def run(device: str, shapes: Sequence[str], rows: Sequence[int], distinct: Sequence[int], repeats: int) -> Result:
    """The result for these shapes."""
    result = Result()
    check_tokens(device)
    for name in shapes:
        measure(result, name, device=device, rows=rows, distinct=distinct, repeats=repeats)
    return result


if __name__ == "__main__":
    main()
