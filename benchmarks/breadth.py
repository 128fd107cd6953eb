"""What people bring: base families x methods in parity, what an exact soup costs to serve, what PEFT's linear misses.

- `families`: cells of base family x adapter method whose logits a second implementation gives too (`parity`).
- `concat_cost` (bottlenecks) and `concat_cost_lora`: tokens per second of the engine with a 5-ingredient `concat` soup
  over those with the `average` of the same five (made of LoRAs on request only). All run in turn.
- `lora_linear_error`: relative error of PEFT's `add_weighted_adapter(combination_type="linear")` against the exact
  mixture of two independent LoRAs, in the Frobenius norm of the updates; `lora_concat_error` is ours of the same.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import parity
from benchmarks.averaging import Size
from benchmarks.peft_mixing import PeftMixer, error, updates
from benchmarks.report import Result, interleaved, ratios, repeated
from benchmarks.serving import BATCH_TOKENS, INGREDIENTS, Setting, prepare, run_sized
from benchmarks.subjects import Given
from demo.results import Figure
from registry.adapters import expected_tensors
from registry.adapters.weights import adapter_digest
from registry.errors import Internal
from registry.soup import MIXINGS
from registry.soup.compat import SoupPart
from registry.soup.report import relative_cost
from registry.spec import (
    AdapterConfig,
    AverageMixing,
    BaseShape,
    ConcatMixing,
    LoraConfig,
    LoraModule,
    Mixing,
    Provenance,
    canonical_weights,
)
from service.engine import Engine, LoadableAdapter, ScoreRequest

RANK = 16
LINEAR_WEIGHTS = (0.3, 0.7)
AVERAGE, EXACT = AverageMixing(assume_same_init=True), ConcatMixing()
Tensors = Mapping[str, Tensor]


def run(size: Size, *, rows: int, repeats: int) -> Result:
    """All figures."""
    result = Result("breadth")
    measure_families(result)
    measure_linear(result)
    measure_cost(result, size, rows=rows, repeats=repeats)
    return result


def measure_families(result: Result) -> None:
    """Every family with every method."""
    cells = list(parity.measure())
    result.rows.extend(cell | {"tokens_per_s": None} for cell in cells)
    families = len(parity.PLACES)
    result.figures["families"] = Figure(
        sum(cell["parity"] for cell in cells), "cells", len(cells),
        note=f"{families} families x {len(parity.METHODS)} methods; logits to {parity.TOLERANCE} of the largest",
    )  # fmt: skip


# --- what an exact soup costs ---------------------------------------------------------------------


def parts_of(config: AdapterConfig, shape: BaseShape, weights: Sequence[float]) -> list[SoupPart]:
    """Random ingredients of one structure at these weights."""
    return [
        SoupPart(
            adapter_id=number, ref=f"team/a{number}@1", digest=f"sha256:{number:064x}", weight=weight,
            base_fingerprint=shape.fingerprint, config=config, provenance=Provenance(), dtype="F32",
            load=partial(_random, config, shape, number),
        )
        for number, weight in enumerate(canonical_weights(weights))
    ]  # fmt: skip


def _random(config: AdapterConfig, shape: BaseShape, seed: int) -> dict[str, Tensor]:
    draw = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(draw.normal(0, 0.05, sizes).astype(np.float32))
        for name, sizes in expected_tensors(config, shape).items()
    }


def mixed(parts: Sequence[SoupPart], mixing: Mixing) -> tuple[AdapterConfig, dict[str, Tensor]]:
    """A soup, as `cook` makes it."""
    method = MIXINGS[mixing.method]
    reasons = method.check(parts, mixing)
    if reasons:
        raise Internal(f"the ingredients cannot be mixed: {reasons[0]}")
    return method.result(parts, mixing), method.mix(parts, mixing)


def measure_cost(result: Result, size: Size, *, rows: int, repeats: int) -> None:
    """Tokens per second with an average and with an exact soup of the same ingredients."""
    setting = prepare(size, rows=rows)
    base, shape = setting.base, setting.base.shape
    blocks = [path for path in shape.linears if ".h." in path]
    lora = LoraConfig.of({path: LoraModule(RANK, 2.0 * RANK) for path in blocks})
    configs: dict[str, AdapterConfig] = {"bottleneck": size.config, "lora": lora}
    soups = {
        (kind, mixing.method): mixed(parts_of(config, shape, [1.0] * INGREDIENTS), mixing)
        for kind, config in configs.items()
        for mixing in (AVERAGE, EXACT)
    }
    engine = Engine(Given({"base": base}), max_step_tokens=BATCH_TOKENS)
    engine.start()
    try:
        calls = {f"{kind}_{method}": partial(_score, engine, setting, _handle(shape, *soup))
                 for (kind, method), soup in soups.items()}  # fmt: skip
        if len({round(sum(call()), 6) for call in calls.values()}) < len(calls):
            raise Internal("two soups are the same")
        times = interleaved(calls, repeats=repeats, warm=True)
    finally:
        engine.stop()
    for kind, config in configs.items():
        average, exact = times[f"{kind}_average"], times[f"{kind}_concat"]
        expected = relative_cost([config], soups[kind, "concat"][0], shape)
        note = f"{INGREDIENTS} ingredients on {size.name}; {1 / expected:.3g} by multiplications alone"
        result.figures["concat_cost" if kind == "bottleneck" else "concat_cost_lora"] = repeated(
            ratios(average, exact), "ratio", note=note
        )
        for name in (f"{kind}_average", f"{kind}_concat"):
            result.figures[f"{name}_tokens_per_s"] = repeated([setting.tokens / one for one in times[name]], "tokens/s")
            result.rows.append(
                {"family": size.name, "method": name, "tokens_per_s": setting.tokens / median(times[name])}
            )


def _handle(shape: BaseShape, config: AdapterConfig, tensors: dict[str, Tensor]) -> LoadableAdapter:
    return LoadableAdapter(adapter_digest(shape.fingerprint, config, tensors), config, lambda: tensors)


def _score(engine: Engine, setting: Setting, handle: LoadableAdapter) -> list[float]:
    answer: Any = engine.submit(ScoreRequest("base", tuple(setting.windows), handle)).result()
    return list(answer.nll)


# --- PEFT's linear --------------------------------------------------------------------------------


def measure_linear(result: Result) -> None:
    """Two independent LoRAs: PEFT's linear, and ours, against the sum of their updates."""
    model, shape = parity.tiny("llama")
    config = LoraConfig.of({path: LoraModule(8, 16.0) for path in shape.linears if "self_attn" in path})
    parts = parts_of(config, shape, LINEAR_WEIGHTS)
    exact = _sum_of([updates(config, part.load(), float(part.weight)) for part in parts])
    peft = PeftMixer(copy.deepcopy(model), config, [part.load() for part in parts])
    peft.mix(LINEAR_WEIGHTS, combination_type="linear")
    soup, tensors = mixed(parts, EXACT)
    note = "Frobenius norm of the updates of all modules, against that of the exact mixture"
    result.figures["lora_linear_error"] = Figure(error(peft.updates(), exact), "fraction", note=note)
    result.figures["lora_concat_error"] = Figure(error(updates(soup, tensors, 1.0), exact), "fraction", note=note)


def _sum_of(updates: Sequence[Tensors]) -> dict[str, Tensor]:
    return {path: torch.stack([one[path] for one in updates]).sum(0) for path in updates[0]}


def main() -> None:
    """The command line."""
    run_sized(run, __doc__)


if __name__ == "__main__":
    main()
