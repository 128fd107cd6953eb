"""The cost of mixtures in requests compared with stored adapters, over HTTP, in memory and on disk.

- `mixture_cold`: the time of one token from a mixture of five adapters on disk, divided by that from one adapter on
  disk. The request reads, checks and mixes them.
- `mixture_warm`: the time of a completion from a mixture in memory, divided by that from an adapter in memory.
- `mixtures_at_once`: the time of sixteen completions at once from sixteen mixtures in memory, divided by that from
  sixteen adapters.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from adaptersoup.client.additions import Additions
from benchmarks.over_http import post_all, with_folder
from benchmarks.report import Result, interleaved, options, ratios, repeated
from benchmarks.subjects import about, base_options, chosen_base, drawn_tensors, lora_of
from demo.server import Server, running, write_bases
from registry.adapters.weights import save_tensors
from registry.base_model import LoadedBase
from registry.formats import AdapterContents, write_directory

MIXED, ROWS, TOKENS = 5, 16, 64
"""Adapters of a mixture, requests at once, and tokens of a completion."""
COLD_GOAL, WARM_GOAL = 2.0, 1.05
PROMPT = "The ferry leaves the harbour"


@dataclass(frozen=True)
class Reader:
    """Completions from a server, which no end of text cuts short."""

    server: Server
    logit_bias: dict[str, float]

    def complete(self, models: Sequence[str], tokens: int) -> None:
        """Complete a prompt with each model, all at once."""
        fields = {"prompt": PROMPT, "max_tokens": tokens, "logit_bias": self.logit_bias}
        post_all(self.server, "/v1/completions", [{"model": model, **fields} for model in models])


def push_drawn(server: Server, base: LoadedBase, scratch: Path, adapters: int) -> list[str]:
    """Push drawn LoRAs and return their names."""
    config = lora_of(base.shape)
    names = [f"bench/a{seed}" for seed in range(adapters)]
    with server.client() as client:
        for seed, name in enumerate(names):
            contents = AdapterContents(
                config=config,
                domain="drawn",
                weights=save_tensors(drawn_tensors(base, config, seed)),
                base_model=base.entry.id,
                base_fingerprint=base.shape.fingerprint,
            )
            write_directory(scratch / f"a{seed}", contents)
            client.push_directory(scratch / f"a{seed}", name=name, more=Additions())
    return names


def run(base: LoadedBase, *, repeats: int) -> Result:
    """Push to one server, and measure on another one over the same data, which has no adapter in memory."""
    result = Result()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        base = with_folder(base, scratch / "base")
        bases = write_bases(scratch / "bases.toml", base.entry)
        with running(bases, scratch / "data") as server:
            names = push_drawn(server, base, scratch, ROWS + MIXED + (1 + MIXED) * (repeats + 1))
        with running(bases, scratch / "data") as server:
            ends = {str(token): -100.0 for token in (base.eos_id, *base.end_ids) if token is not None}
            reader = Reader(server, ends)
            reader.complete([f"base/{base.entry.id}"], TOKENS)
            times = _measure(reader, names, repeats)
    for way, seconds in times.items():
        result.rows += [{**about(base), "way": way, "wall_s": value} for value in seconds]
    for figure, mixtures, adapters, goal in (
        ("mixture_cold", "cold_mixture", "cold_adapter", COLD_GOAL),
        ("mixture_warm", "warm_mixture", "warm_adapter", WARM_GOAL),
        ("mixtures_at_once", "mixtures_at_once", "adapters_at_once", None),
    ):
        result.figures[figure] = repeated(ratios(times[mixtures], times[adapters]), "ratio", goal=goal)
    return result


def _measure(reader: Reader, names: Sequence[str], repeats: int) -> dict[str, list[float]]:
    """Seconds of each way; `names` are first those that stay in memory, then those that are read once."""
    unread = iter(names[ROWS + MIXED :])
    mixtures = ["+".join(names[first : first + MIXED]) for first in range(ROWS)]
    cold: dict[str, Callable[[], object]] = {
        "cold_adapter": lambda: reader.complete([next(unread)], 1),
        "cold_mixture": lambda: reader.complete(["+".join(islice(unread, MIXED))], 1),
    }
    warm: dict[str, Callable[[], object]] = {
        "warm_adapter": partial(reader.complete, names[:1], TOKENS),
        "warm_mixture": partial(reader.complete, mixtures[:1], TOKENS),
        "adapters_at_once": partial(reader.complete, names[:ROWS], TOKENS),
        "mixtures_at_once": partial(reader.complete, mixtures, TOKENS),
    }
    return interleaved(cold, repeats=repeats) | interleaved(warm, repeats=repeats)


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    base_options(parser)
    arguments = parser.parse_args()
    run(chosen_base(arguments.base_folder, arguments.dtype), repeats=arguments.repeats).finish(arguments.out)


if __name__ == "__main__":
    main()
