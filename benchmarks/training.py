"""The cost of training an adapter: tokens per second and memory, compared with full fine-tuning and PEFT's LoRA.

Every variant is one step of `training.state.TrainingState` (what `soup train` runs) on blocks of random tokens; values
do not matter for speed. Each measurement is a separate process, because a process's peak memory cannot be reset. It
warms up, takes the median of some steps, and reports its peak memory. All variants take turns in each repeat, and
ratios are computed per repeat.

- `adapter_vs_full`: a Bapna-Firat adapter over full fine-tuning. Forward passes are the same and a little more;
  backward, no base weight gets a gradient, and nothing below the first adapter is passed.
- `adapter_vs_peft_lora`: the same adapter over a LoRA of PEFT with as many parameters (within a percent) on the
  attention's projections; `lora_vs_peft_lora`: our LoRA over PEFT's on the same modules with the same rank.
- `adamix_overhead`: a pass with a drawn route through a bank of four experts over the plain adapter's pass;
  `adamix_step_overhead`: a whole step with consistency over twice the plain step, which it has two passes for.
- `mask_overhead`: a step of the adapter with 40 % of its entries pruned over the plain step.

With `--base-folder` it runs on another base model, as large ones are on fewer and shorter blocks and without AdaMix and
pruning (`--variants`, `--batch`, `--block`); the goals are then those of a deep model.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers

from benchmarks.full_fine_tuning import unfrozen
from benchmarks.report import Result, options, ratios, repeated, seconds
from demo.results import Figure, Row, best_dtype
from registry.adapters import attached, create, paper_config
from registry.adapters.experts import BankAdapter
from registry.base_model import LoadedBase, load_base
from registry.spec import BankConfig, BaseEntry
from training.hyperparameters import Hyperparameters, PruningOptions
from training.methods.adamix import consistent_loss
from training.methods.lora_targets import lora_for
from training.methods.pruning import prune
from training.state import Loss, Objective, TrainingState
from training.tasks import LANGUAGE_MODELLING
from training.trainer import loss_of

BOTTLENECK = 64
"""Of the adapter; the LoRAs' rank is that which comes nearest to its parameters: 22 on the shared base model."""
EXPERTS, SPARSITY = 4, 0.4
BATCH, BLOCK = 8, 512
WARM = 2
SEED = 0
SHARED_BASE = Path("../shared/base-lm")
GOALS = {"adapter_vs_full": 1.2, "adapter_vs_peft_lora": 0.97, "lora_vs_peft_lora": 0.97}
DEEP_GOALS = {"adapter_vs_full": 1.3, "adapter_vs_peft_lora": 1.0}
"""On a model of many layers and a large vocabulary."""
Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Prepared:
    """The subject of a step: the module, its loss, and contexts that must be open meanwhile."""

    module: nn.Module
    loss: Loss
    attached: AbstractContextManager[None]


# --- one measurement, in a process of its own -------------------------------------------------------


def measure(
    base_folder: Path, variant: str, *, dtype: Dtype, steps: int, batch: int = BATCH, block: int = BLOCK
) -> Row:
    """Median seconds of a step, parameters trained, and the most memory this process has had."""
    base = load_base(BaseEntry(id="base", source=str(base_folder.resolve())))
    blocks = np.random.default_rng(SEED).integers(1, base.shape.vocab_size, (4 * batch, block))
    numbers = Hyperparameters(
        steps=WARM + steps, batch=batch, block=block, learning_rate=1e-4, dtype=dtype, evaluations=1
    )
    prepared = VARIANTS[variant](base)
    with prepared.attached:
        state = TrainingState(
            prepared.module, Objective(prepared.loss), train=blocks, valid=blocks, hyperparameters=numbers
        )
        for _ in range(WARM):
            state.advance()
        step_seconds = [seconds(state.advance) for _ in range(steps)]
    step = median(step_seconds)
    return {
        "variant": variant,
        "step_s": step,
        "tokens_per_s": batch * block / step,
        "parameters_trained": sum(parameter.numel() for parameter in state.trained.values()),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _full(base: LoadedBase) -> Prepared:
    model = unfrozen(base.model, "all")
    return Prepared(model, loss_of(replace(base, model=model)), nullcontext())


def _adapter(base: LoadedBase, *, lora: bool = False, masked: bool = False) -> Prepared:
    rank = _rank(base) if lora else 0
    plain = paper_config("bapna_firat", bottleneck=BOTTLENECK)
    config = lora_for(base.shape, rank=rank, alpha=2.0 * rank) if lora else plain
    adapter = create(config, base.shape, seed=SEED, base=base.model)
    loss = loss_of(base, adapter)
    if masked:
        pruning = PruningOptions(score="magnitude", sparsity=SPARSITY)
        rows = np.empty((0, BLOCK), dtype=np.int64)  # this score uses no gradient
        adapter = prune(adapter, loss, rows, pruning, batch=BATCH, data_digest="")
    return Prepared(adapter, loss, attached(base.model, adapter))


def _rank(base: LoadedBase) -> int:
    """Of a LoRA on the attention's projections: that with which it comes nearest to the adapter's parameters."""
    adapter, rank_one = (
        sum(value.numel() for value in create(config, base.shape, seed=SEED, base=base.model).parameters())
        for config in (paper_config("bapna_firat", bottleneck=BOTTLENECK), lora_for(base.shape, rank=1, alpha=2.0))
    )
    return max(1, round(adapter / rank_one))


def _bank(base: LoadedBase, *, consistency: Literal["none", "released"]) -> Prepared:
    config = BankConfig(expert=paper_config("bapna_firat", bottleneck=BOTTLENECK), experts=EXPERTS)
    bank = create(config, base.shape, seed=SEED, base=base.model)
    assert isinstance(bank, BankAdapter)
    loss = consistent_loss(lambda rows: LANGUAGE_MODELLING.scored(base, bank, rows), bank, consistency)
    return Prepared(bank, loss, attached(base.model, bank))


def _peft_lora(base: LoadedBase) -> Prepared:
    import peft

    rank = _rank(base)
    ours = lora_for(base.shape, rank=rank, alpha=2.0 * rank)
    model = copy.deepcopy(base.model)
    theirs = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=list(ours.modules()),
        fan_in_fan_out=base.shape.model_type == "gpt2",
    )
    wrapped: Any = peft.get_peft_model(model, theirs)
    return Prepared(wrapped, loss_of(replace(base, model=wrapped.base_model.model)), nullcontext())


VARIANTS: Mapping[str, Callable[[LoadedBase], Prepared]] = {
    "full": _full,
    "adapter": _adapter,
    "lora": partial(_adapter, lora=True),
    "peft_lora": _peft_lora,
    "adamix_pass": partial(_bank, consistency="none"),
    "adamix_step": partial(_bank, consistency="released"),
    "masked": partial(_adapter, masked=True),
}


# --- all of them ------------------------------------------------------------------------------------


def in_a_process(base_folder: Path, variant: str, *, dtype: Dtype, steps: int, batch: int, block: int) -> Row:
    """One measurement in a fresh process; raises CalledProcessError."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.training",
        "--variant",
        variant,
        "--base-folder",
        str(base_folder),
        "--dtype",
        dtype,
        "--steps",
        str(steps),
        "--batch",
        str(batch),
        "--block",
        str(block),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def run(
    take: Callable[[str], Row],
    *,
    repeats: int,
    dtype: str,
    variants: Sequence[str] = tuple(VARIANTS),
    goals: Mapping[str, float] = GOALS,
) -> Result:
    """`repeats` measurements of each variant by `take`, in turn, and the ratios."""
    measurements: dict[str, list[Row]] = {variant: [] for variant in variants}
    for _ in range(repeats):
        for variant, rows in measurements.items():
            rows.append(take(variant))
    result = Result()
    for rows in measurements.values():
        named = ("step_s", "tokens_per_s", "peak_memory_mib")
        result.rows.append({**rows[0], **{name: median(row[name] for row in rows) for name in named}, "dtype": dtype})
    result.figures.update(_figures(measurements, goals))
    return result


def _figures(measurements: Mapping[str, list[Row]], goals: Mapping[str, float]) -> dict[str, Figure]:
    """Ratios and overheads between variants that were both measured, and what each was like."""
    step = {variant: [row["step_s"] for row in rows] for variant, rows in measurements.items()}
    figures: dict[str, Figure] = {}
    for name in GOALS:
        ours, theirs = name.split("_vs_")
        if {ours, theirs} <= step.keys():
            figures[name] = repeated(ratios(step[theirs], step[ours]), "ratio", goal=goals.get(name))
    overheads = {"adamix_overhead": ("adamix_pass", 1), "adamix_step_overhead": ("adamix_step", 2)}
    for name, (variant, passes) in {**overheads, "mask_overhead": ("masked", 1)}.items():
        if {variant, "adapter"} <= step.keys():
            over = [ratio / passes - 1 for ratio in ratios(step[variant], step["adapter"])]
            figures[name] = repeated(over, "fraction", goal=0.1)
    for variant, rows in measurements.items():
        figures[f"peak_memory_{variant}_mib"] = repeated([row["peak_memory_mib"] for row in rows], "MiB")
        figures[f"tokens_per_s_{variant}"] = repeated([row["tokens_per_s"] for row in rows], "tokens/s")
    return figures


def main() -> None:
    """The command line; with --variant one measurement, as JSON."""
    parser = options(__doc__)
    parser.add_argument("--variant", choices=tuple(VARIANTS), help="measure this one here, and print it as JSON")
    parser.add_argument("--variants", nargs="+", choices=tuple(VARIANTS), default=list(VARIANTS), help="measure these")
    parser.add_argument("--base-folder", type=Path, default=SHARED_BASE, help="folder of the base model")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--steps", type=int, default=9, help="steps of a measurement; their median counts")
    parser.add_argument("--batch", type=int, default=BATCH, help="blocks of a step")
    parser.add_argument("--block", type=int, default=BLOCK, help="tokens of a block")
    arguments = parser.parse_args()
    dtype = best_dtype() if arguments.dtype == "auto" else arguments.dtype
    numbers = {"dtype": dtype, "steps": arguments.steps, "batch": arguments.batch, "block": arguments.block}
    if arguments.variant:
        print(json.dumps(measure(arguments.base_folder, arguments.variant, **numbers)))
        return
    take = partial(in_a_process, arguments.base_folder, **numbers)
    goals = GOALS if arguments.base_folder.resolve() == SHARED_BASE.resolve() else DEEP_GOALS
    run(take, repeats=arguments.repeats, dtype=dtype, variants=arguments.variants, goals=goals).finish(arguments.out)


if __name__ == "__main__":
    main()
