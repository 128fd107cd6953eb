"""What many layers and a large vocabulary cost: hooks on the layers, and memory beside what a server counts.

- `hook_overhead_<method>`: CPU time of a forward pass of blocks with an adapter attached over that of the bare base
  model, minus 1; the adapter's own arithmetic is in it.
- `hook_overhead_identity`: the same with hooks on as many modules that do nothing: what attaching alone costs.
- `grown_over_counted_<dtype>`: growth of this process's resident memory by a base model as a server loads it, over the
  bytes that `SOUP_MEMORY_BYTES` counts for it; `grown_over_counted_adapters`: the same of adapters held ready.
- `left_of_<dtype>`: what of that growth is left after the base model was dropped.

Memory is measured in processes of their own, which have served a small base model before.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers

from benchmarks.cold_start import SMALL_BASE
from benchmarks.report import Result, options, ratios, repeated

if TYPE_CHECKING:
    from torch import Tensor, nn

    from registry.adapters import AdapterModule
    from registry.adapters.attach import Edit
    from registry.base_model import LoadedBase
    from service.engine.runner import Runner

DTYPES = ("float32", "bfloat16")
BOTTLENECK, ADAPTERS = 16, 20
BATCH, BLOCK = 4, 128
SEED = 0
LOAD_GOAL = 1.1
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


# --- memory, in a process of its own ----------------------------------------------------------------


def memory(base_folder: Path, dtype: str) -> dict[str, float]:
    """Bytes counted and bytes grown for a base model and for adapters on it, and what a dropped base model leaves."""
    from registry.spec import BaseEntry
    from service.engine.bases import AllowedBases
    from service.engine.residence import Residence
    from service.engine.trial import tried

    with TemporaryDirectory() as cache:
        entries = {
            "small": BaseEntry(id="small", source=str(SMALL_BASE)),
            "deep": BaseEntry.model_validate({"id": "deep", "source": str(base_folder.resolve()), "dtype": dtype}),
        }
        source = AllowedBases(entries, Path(cache))
        size = source.size("deep")
        source.text("deep")
        residence = Residence(source, size, lambda: None, tried)
        residence.arrange({"small": 0}, frozenset(), background=False)
        start = resident()
        residence.arrange({"deep": 0}, frozenset(), background=False)
        grown = resident() - start
        counted_adapters, grown_adapters = _adapters(residence.base("deep"))
        residence.arrange({"small": 0}, frozenset(), background=False)
        left = resident() - start
    return {
        "counted": size, "grown": grown, "left": left,
        "counted_adapters": counted_adapters, "grown_adapters": grown_adapters,
    }  # fmt: skip


def _adapters(runner: Runner) -> tuple[int, int]:
    """Bytes that the engine counts for adapters held ready, and those by which this process grows."""
    from registry.adapters import create, paper_config
    from registry.adapters.loadable import LoadableAdapter
    from registry.adapters.weights import load_tensors, save_tensors
    from service.engine.bank import Bank

    base, config = runner.base, paper_config("bapna_firat", bottleneck=BOTTLENECK)
    stored = save_tensors(create(config, base.shape, seed=SEED, base=base.model).state_dict())
    bank, start = Bank(2**40), resident()
    for number in range(ADAPTERS):
        handle = LoadableAdapter(f"sha256:{number:064d}", config, lambda: load_tensors(stored))
        bank.get(runner, handle)
    return bank.bytes, resident() - start


def in_a_process(base_folder: Path, dtype: str) -> dict[str, float]:
    """`memory` in a fresh process; raises CalledProcessError."""
    command = [sys.executable, "-m", "benchmarks.deep_model", "--base-folder", str(base_folder), "--memory", dtype]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- hooks ------------------------------------------------------------------------------------------


def passes(base: LoadedBase) -> dict[str, Callable[[], object]]:
    """Forward passes over the same blocks: bare, under adapters, and under hooks that do nothing."""
    import torch

    from registry.adapters import attached, create, paper_config
    from registry.likelihood import hidden_states
    from training.methods.lora_targets import lora_for

    ids = torch.randint(1, base.shape.vocab_size, (BATCH, BLOCK), generator=torch.Generator().manual_seed(SEED))
    mask = torch.ones_like(ids)
    configs = {
        "bapna_firat": paper_config("bapna_firat", bottleneck=BOTTLENECK),
        "lora": lora_for(base.shape, rank=8, alpha=16.0),
    }
    adapters = {name: create(config, base.shape, seed=SEED, base=base.model).eval() for name, config in configs.items()}

    def bare() -> None:
        with torch.inference_mode():
            hidden_states(base.model, ids, mask)

    def under(adapter: AdapterModule) -> None:
        with attached(base.model, adapter):
            bare()

    found: dict[str, Callable[[], object]] = {"bare": bare, "identity": lambda: under(_doing_nothing(adapters["lora"]))}
    return found | {name: (lambda one=adapter: under(one)) for name, adapter in adapters.items()}


def _doing_nothing(adapter: AdapterModule) -> AdapterModule:
    """An adapter with hooks on the modules of another, which give each output back as it came."""
    from registry.adapters import AdapterModule

    class Nothing(AdapterModule):
        config = adapter.config

        def check_fit(self, model: nn.Module) -> None:
            adapter.check_fit(model)

        def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
            return ((module, _as_it_came) for module, _ in adapter.edits(model))

    return Nothing()


def _as_it_came(_module: nn.Module, _argument: Tensor, output: Tensor) -> Tensor:
    return output


def cpu_seconds(calls: Mapping[str, Callable[[], object]], *, repeats: int) -> dict[str, list[float]]:
    """CPU time of each call, `repeats` times, in turn, after one that does not count: others' work is not in it."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if repeat:
                found[name].append(time.process_time() - start)
    return found


def run(base_folder: Path, *, repeats: int) -> Result:
    """Measure all of it on the base model in a folder."""
    from registry.base_model import load_base
    from registry.spec import BaseEntry

    result = Result("deep_model")
    for dtype in DTYPES:
        found = in_a_process(base_folder, dtype)
        result.rows.append({"dtype": dtype, **found})
        for name, above, below, goal in (
            (f"grown_over_counted_{dtype}", "grown", "counted", LOAD_GOAL),
            (f"left_of_{dtype}", "left", "grown", None),
            (f"grown_over_counted_adapters_{dtype}", "grown_adapters", "counted_adapters", LOAD_GOAL),
        ):
            result.figures[name] = repeated([found[above] / found[below]], "ratio", goal=goal)
    base = load_base(BaseEntry(id="deep", source=str(base_folder.resolve())))
    times = cpu_seconds(passes(base), repeats=repeats)
    for name in list(times)[1:]:
        over = [ratio - 1 for ratio in ratios(times[name], times["bare"])]
        result.figures[f"hook_overhead_{name}"] = repeated(over, "fraction")
    return result


def main() -> None:
    """The command line; with --memory one measurement, as JSON."""
    parser = options(__doc__)
    parser.add_argument("--base-folder", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--memory", choices=DTYPES, help="measure memory in this dtype here, and print it as JSON")
    given = parser.parse_args()
    if given.memory:
        print(json.dumps(memory(given.base_folder, given.memory)))
        return
    run(given.base_folder, repeats=given.repeats).finish(given.out)


if __name__ == "__main__":
    main()
