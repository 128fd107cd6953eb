"""What a soup costs to serve: scored tokens per second of the engine with nothing, an adapter, a soup, an ensemble.

AdapterSoup's promise (Chronopoulou et al., 2023) is the quality of several adapters at the cost of one. The soup is
mixed by `registry.soup.average` from the five adapters; the ensemble of the same five is what it replaces: every batch
once with each adapter, the probabilities averaged, written here by hand. The engine is also held against a bare
transformers loop on the same rows: in padded batches of like length (the engine packs them without padding), and in
order of arrival, 16 at a time, as one would write it at first.

Rows are random token ids on a random GPT-2 (speed does not depend on their values), with the spread of lengths that
passages have. All variants run in turn in each repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.averaging import Size, ours
from benchmarks.report import Result, interleaved, options, ratios, repeated
from benchmarks.subjects import FULL, QUICK, Given, Window, passages, random_gpt2
from registry.adapters import AdapterModule, attached, from_tensors
from registry.adapters.weights import adapter_digest
from registry.base_model import LoadedBase
from registry.errors import Internal
from registry.likelihood import batches, padded
from service.engine import Engine, LoadableAdapter, ScoreRequest

INGREDIENTS = 5
BATCH_TOKENS = 4096
ARRIVAL_ROWS = 16
TOLERANCE = 1e-3
"""Nats per row by which two ways of computing the same may differ."""


@dataclass(frozen=True)
class Setting:
    """A base model in memory, its adapters and their soup, and the rows to score."""

    base: LoadedBase
    adapters: Sequence[AdapterModule]
    handles: Mapping[str, LoadableAdapter]
    windows: Sequence[Window]

    @property
    def tokens(self) -> int:
        """Tokens that are scored: all of a row but its first."""
        return sum(len(window) - 1 for window in self.windows)


def prepare(size: Size, *, rows: int) -> Setting:
    """Everything random is seeded."""
    base = random_gpt2(size)
    tensors = [{name: 0.05 * tensor for name, tensor in size.adapter(seed).items()} for seed in range(INGREDIENTS)]
    named = {"adapter": tensors[0], "soup": ours(size, tensors)}
    handles = {name: _handle(size, values) for name, values in named.items()}
    adapters = [from_tensors(size.config, base.shape, values).eval().requires_grad_(False) for values in tensors]
    return Setting(base, adapters, handles, passages(base, rows=rows))


def _handle(size: Size, tensors: dict[str, Tensor]) -> LoadableAdapter:
    return LoadableAdapter(adapter_digest(size.shape.fingerprint, size.config, tensors), size.config, lambda: tensors)


# --- the ways to score ----------------------------------------------------------------------------


def by_engine(engine: Engine, setting: Setting, adapter: str | None) -> list[float]:
    """NLL of each row from the engine, waiting for the answer."""
    handle = None if adapter is None else setting.handles[adapter]
    answer: Any = engine.submit(ScoreRequest("base", tuple(setting.windows), handle)).result()
    return list(answer.nll)


def bare(setting: Setting, groups: Sequence[Sequence[int]]) -> list[float]:
    """NLL of each row from the model alone: logits, log_softmax, gather."""
    return _by_hand(setting, groups, lambda ids, mask: _log_probs(setting, ids, mask, nullcontext()))


def ensemble(setting: Setting, groups: Sequence[Sequence[int]]) -> list[float]:
    """NLL of each row under the mean of the adapters' probabilities: one forward pass for each of them."""

    def log_probs(ids: Tensor, mask: Tensor) -> Tensor:
        every = [_log_probs(setting, ids, mask, attached(setting.base.model, one)) for one in setting.adapters]
        return torch.logsumexp(torch.stack(every), dim=0) - math.log(len(every))

    return _by_hand(setting, groups, log_probs)


def _log_probs(setting: Setting, ids: Tensor, mask: Tensor, adapter: AbstractContextManager[None]) -> Tensor:
    """(batch, time - 1): log-probability of each next token."""
    with adapter:
        logits: Tensor = setting.base.model(input_ids=ids, attention_mask=mask).logits
    return torch.log_softmax(logits[:, :-1], dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


@torch.inference_mode()
def _by_hand(
    setting: Setting, groups: Sequence[Sequence[int]], log_probs: Callable[[Tensor, Tensor], Tensor]
) -> list[float]:
    found = [0.0] * len(setting.windows)
    for group in groups:
        ids, mask = padded([setting.windows[index] for index in group], pad_id=0)
        sums = (log_probs(ids, mask) * mask[:, 1:]).double().sum(dim=1)
        for index, total in zip(group, sums.tolist(), strict=True):
            found[index] = -total
    return found


# --- measuring ------------------------------------------------------------------------------------


def run(size: Size, *, rows: int, repeats: int) -> Result:
    """Every variant on the same rows."""
    setting = prepare(size, rows=rows)
    bucketed = batches([len(window) for window in setting.windows], max_tokens=BATCH_TOKENS)
    arrival = [list(range(start, min(start + ARRIVAL_ROWS, rows))) for start in range(0, rows, ARRIVAL_ROWS)]
    engine = Engine(Given({"base": setting.base}), max_step_tokens=BATCH_TOKENS)
    engine.start()
    try:
        calls: dict[str, Callable[[], list[float]]] = {
            "base": partial(by_engine, engine, setting, None),
            "adapter": partial(by_engine, engine, setting, "adapter"),
            "soup": partial(by_engine, engine, setting, "soup"),
            "ensemble_by_hand": partial(ensemble, setting, bucketed),
            "bare_same_batches": partial(bare, setting, bucketed),
            "bare_in_order": partial(bare, setting, arrival),
        }
        _agree(calls)
        times = interleaved(calls, repeats=repeats, warm=True)
    finally:
        engine.stop()
    return _result(size, setting, times)


def _agree(calls: Mapping[str, Callable[[], list[float]]]) -> None:
    """What is compared computes the same; the soup, the adapter and the ensemble each something else."""
    nll = {name: call() for name, call in calls.items()}
    for other in ("bare_same_batches", "bare_in_order"):
        apart = max(abs(one - two) for one, two in zip(nll["base"], nll[other], strict=True))
        if apart > TOLERANCE * max(nll["base"]):
            raise Internal(f"the engine and {other} differ by {apart} nats")
    if len({round(sum(nll[name]), 6) for name in ("base", "adapter", "soup", "ensemble_by_hand")}) < 4:
        raise Internal("an adapter changes nothing")


def _result(size: Size, setting: Setting, times: Mapping[str, list[float]]) -> Result:
    result = Result("serving")
    for name, found in times.items():
        result.figures[f"{name}_tokens_per_s"] = repeated([setting.tokens / one for one in found], "tokens/s")
        result.rows.append(
            {
                "model": size.name,
                "variant": name,
                "rows": len(setting.windows),
                "tokens": setting.tokens,
                "wall_s": median(found),
                "tokens_per_s": setting.tokens / median(found),
            }
        )
    for name, above, below, goal, note in (
        ("soup_over_adapter", "soup", "adapter", 1.0, "time; the promise is the cost of a single adapter"),
        ("adapter_over_base", "adapter", "base", None, "time"),
        ("ensemble_over_soup", "ensemble_by_hand", "soup", None, f"time; {INGREDIENTS} adapters"),
        (
            "engine_over_bare_same_batches",
            "base",
            "bare_same_batches",
            None,
            "time; same rows in padded batches of like length",
        ),
        ("engine_over_bare_in_order", "base", "bare_in_order", None, "time; same rows, in order, 16 at a time"),
    ):
        result.figures[name] = repeated(ratios(times[above], times[below]), "ratio", goal=goal, note=note)
    return result


def run_sized(run: Callable[..., Result], description: str | None) -> None:
    """The command line of a benchmark that has a quick and a full size."""
    parser = options(description)
    parser.add_argument("--full", action="store_true", help="GPT-2 small's shape instead of the small one's")
    parser.add_argument("--rows", type=int, help="rows to score (quick: 64, full: 24)")
    arguments = parser.parse_args()
    size, rows = (FULL, 24) if arguments.full else (QUICK, 64)
    run(size, rows=arguments.rows or rows, repeats=arguments.repeats).finish(arguments.out)


def main() -> None:
    """The command line."""
    run_sized(run, __doc__)


if __name__ == "__main__":
    main()
