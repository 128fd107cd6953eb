"""How fast many adapters write together: tokens per second with one adapter for all rows, one for each, and none.

Held against transformers' `generate` for the base alone and against PEFT's batches of mixed adapters (`adapter_names`)
for LoRAs, on the same prompts, greedily, in the same run. Before anything is timed, all ways have to write the same
tokens (in fp32; in bf16 near-ties may be broken otherwise, and only the adapters' being told apart is checked).

The base model is a random GPT-2 of the small one's shape, or any folder (`--base-folder`), such as SmolLM2's that
`make demo` leaves in `.demo/models`. Rates are of whole requests: prompts are part of the work, alike for everybody.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.report import Result, interleaved, options, ratios, repeated
from benchmarks.serving import FULL, Given, prepare, silent
from registry.adapters import create, paper_config
from registry.base_model import LoadedBase, load_base
from registry.errors import Internal
from registry.spec import AdapterConfig, BaseEntry, LoraConfig, LoraModule
from service.engine import Engine, GenerateRequest, LoadableAdapter, SamplingParams

PROMPT, TOKENS, RANK, BOTTLENECK = 32, 32, 8, 8
TARGETS = ("q_proj", "v_proj", "c_attn")
GOALS = {"base_vs_hf": 1.3, "mixed_vs_base": 0.9, "mixed_vs_peft": 1.8}

MOSTLY = 0.75
"""Of all rows: those that have to be the same by two ways. Where two tokens are as likely, rounding chooses."""

Rows = list[tuple[int, ...]]


@dataclass(frozen=True)
class Writing:
    """A base model, an engine that has it, prompts, and LoRAs and bottlenecks: one for each prompt."""

    base: LoadedBase
    engine: Engine
    prompts: Sequence[tuple[int, ...]]
    loras: Sequence[LoadableAdapter]
    bottlenecks: Sequence[LoadableAdapter]
    tokens: int

    def ours(self, adapters: Sequence[LoadableAdapter | None]) -> Rows:
        """What the engine writes, each row with its adapter."""
        params = SamplingParams(max_tokens=self.tokens, temperature=0)
        base_id, asked = self.base.entry.id, zip(self.prompts, adapters, strict=True)
        tickets = self.engine.submit_all([GenerateRequest(base_id, row, one, params) for row, one in asked])
        return [ticket.result().choices[0].token_ids for ticket in tickets]

    def generate(self, model: Any, **more: Any) -> Rows:
        """What transformers' `generate` writes."""
        ids = torch.tensor(self.prompts)
        written = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=self.tokens,
            min_new_tokens=self.tokens, pad_token_id=0, **more,
        )  # fmt: skip
        return [tuple(row) for row in written[:, ids.shape[1] :].tolist()]


def writing(base: LoadedBase, *, rows: int, tokens: int) -> Writing:
    """Seeded prompts and adapters on a base that never ends a text by itself."""
    base = silent(base)
    draw = torch.Generator().manual_seed(0)
    prompts = [tuple(torch.randint(5, base.shape.vocab_size, (PROMPT,), generator=draw).tolist()) for _ in range(rows)]
    paths = [path for path in base.shape.linears if path.endswith(TARGETS)]
    lora = LoraConfig.of({path: LoraModule(rank=RANK, alpha=2.0 * RANK) for path in paths})
    bottleneck = paper_config("bapna_firat", bottleneck=BOTTLENECK)
    engine = Engine(Given({base.entry.id: base}), max_rows=rows, bank_bytes=2**40)
    return Writing(
        base, engine, prompts, _drawn(base, lora, "small_b", rows), _drawn(base, bottleneck, "near_identity", rows),
        tokens,
    )  # fmt: skip


def _drawn(base: LoadedBase, config: AdapterConfig, init: Any, count: int) -> list[LoadableAdapter]:
    """Adapters of one configuration, each strong enough to be seen in what is written."""
    found = []
    for seed in range(count):
        tensors = {
            name: 5 * tensor if name.endswith((".up.weight", ".lora_B.weight")) else tensor
            for name, tensor in create(config, base.shape, seed=seed, init=init, base=base.model).state_dict().items()
        }
        found.append(LoadableAdapter(f"sha256:{config.method:0>44}{seed:020d}"[:71], config, _loader(tensors)))
    return found


def _loader(tensors: dict[str, Tensor]) -> Callable[[], dict[str, Tensor]]:
    return lambda: tensors


def peft_of(found: Writing) -> tuple[Any, list[str]]:
    """The same LoRAs in PEFT's own model, and the name of each row's."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model, set_peft_model_state_dict

    targets = sorted({path.rpartition(".")[2] for path in found.loras[0].config.modules()})  # type: ignore[attr-defined]
    names = [f"adapter{number}" for number in range(len(found.loras))]
    config = PeftConfig(r=RANK, lora_alpha=2 * RANK, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = get_peft_model(copy.deepcopy(found.base.model), config, adapter_name=names[0])
        for name in names[1:]:
            model.add_adapter(name, config)
        for name, handle in zip(names, found.loras, strict=True):
            missing: Any = set_peft_model_state_dict(model, dict(handle.load()), adapter_name=name)
            if missing.unexpected_keys:
                raise Internal(f"PEFT does not know {missing.unexpected_keys[0]}")
    model.to(found.base.model.dtype)
    return model.eval(), names


def run(base: LoadedBase, *, rows: int, tokens: int, repeats: int) -> Result:
    """Every way, in turn."""
    found = writing(base, rows=rows, tokens=tokens)
    peft, names = peft_of(found)
    found.engine.start()
    try:
        calls: dict[str, Callable[[], Rows]] = {
            "base": partial(found.ours, [None] * rows),
            "one_lora": partial(found.ours, [found.loras[0]] * rows),
            "mixed": partial(found.ours, found.loras),
            "mixed_bottlenecks": partial(found.ours, found.bottlenecks),
            "transformers": partial(found.generate, found.base.model),
            "peft": partial(found.generate, peft, adapter_names=names),
        }
        _agree(calls, exact=found.base.model.dtype == torch.float32)
        times = interleaved(calls, repeats=repeats, warm=True)
    finally:
        found.engine.stop()
    return _result(found, times)


def _agree(calls: dict[str, Callable[[], Rows]], *, exact: bool) -> None:
    """What is compared writes the same, and adapters write something else than the base."""
    written = {name: call() for name, call in calls.items()}
    for one, other in (("base", "transformers"), ("mixed", "peft")):
        same = sum(a == b for a, b in zip(written[one], written[other], strict=True))
        if exact and same < len(written[one]) * MOSTLY:
            raise Internal(f"{one} and {other} write the same in {same} of {len(written[one])} rows")
    if written["mixed"] == written["base"]:
        raise Internal("the adapters change nothing")


def _result(found: Writing, times: dict[str, list[float]]) -> Result:
    result = Result("decoding")
    rows = len(found.prompts)
    made = rows * found.tokens
    what = {
        "model": found.base.entry.id,
        "family": found.base.shape.model_type,
        "layers": found.base.shape.num_layers,
        "hidden": found.base.shape.hidden_size,
        "dtype": str(found.base.model.dtype).removeprefix("torch."),
        "rows": rows,
    }
    for name, seconds in times.items():
        result.figures[f"{name}_tokens_per_s"] = repeated([made / one for one in seconds], "tokens/s")
        result.rows.append({**what, "way": name, "wall_s": median(seconds), "tokens_per_s": made / median(seconds)})
    for figure, above, below in (
        ("base_vs_hf", "transformers", "base"),
        ("one_vs_base", "base", "one_lora"),
        ("mixed_vs_base", "base", "mixed"),
        ("mixed_bottlenecks_vs_base", "base", "mixed_bottlenecks"),
        ("mixed_vs_peft", "peft", "mixed"),
    ):
        note = f"tokens/s; {rows} rows"
        result.figures[figure] = repeated(
            ratios(times[above], times[below]), "ratio", goal=GOALS.get(figure), note=note
        )
    return result


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--base-folder", type=Path, help="a base model's folder, instead of a random GPT-2 small")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens that each row writes")
    given = parser.parse_args()
    if given.base_folder is None:
        base = prepare(FULL, rows=1).base
        base.model.to(getattr(torch, given.dtype))
    else:
        folder = given.base_folder.resolve()
        base = load_base(BaseEntry(id=folder.name.lower(), source=str(folder), dtype=given.dtype))
    run(base, rows=given.rows, tokens=given.tokens, repeats=given.repeats).finish(given.out)


if __name__ == "__main__":
    main()
