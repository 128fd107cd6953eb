"""A fresh adapter that is trained on a sample in this process, plainly or with dropout, which the service has not.

The training is the service's (`training.tuning`), from an adapter near the identity. Dropout is that of GPT-2: while
gradients are taken, a share of the output of each block that the adapter edits is dropped before the adapter sees it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.soups.cells import FRESH_RATES
from registry.adapters import AdapterModule, create, from_tensors
from registry.base_model import LoadedBase
from registry.cook.plan import folds_of
from registry.names import sha256_digest
from registry.spec import AdapterConfig, StoredAdapter, TuningOptions, TuningRequest
from training.tuning import tune

PASSES = 2
DROPPED = 0.1
BLOB = sha256_digest(b"kept in memory")


def fresh(base: LoadedBase, config: AdapterConfig, texts: Sequence[str], *, dropped: float = 0.0) -> AdapterModule:
    """Trained for two passes at the best of its rates, as held-out passages have it; raises what `tune` does."""
    tried = [_trained(base, config, texts, rate, dropped) for rate in FRESH_RATES]
    return min(tried, key=lambda one: one[0])[1]


def _trained(
    base: LoadedBase, config: AdapterConfig, texts: Sequence[str], rate: str, dropped: float
) -> tuple[float, AdapterModule]:
    """NLL of the held-out passages, and the adapter."""
    start = create(config, base.shape, seed=0)
    kept: Mapping[str, Tensor] = start.state_dict()

    def keep(tensors: Mapping[str, Tensor]) -> str:
        nonlocal kept
        kept = tensors
        return BLOB

    folds, whole = folds_of(len(texts))
    left_open = TuningOptions().model_dump(include={"batch", "max_tokens", "seed"})
    request = TuningRequest(
        texts=tuple(texts), start=StoredAdapter(config=config, blob=BLOB), folds=folds, whole=whole, passes=PASSES,
        rate=rate, **left_open,
    )  # fmt: skip
    with dropping(base.model, start, dropped):
        found = tune(base, request, lambda _: start.state_dict(), keep)
    return sum(found.nll[found.kept]), from_tensors(config, base.shape, kept)


@contextmanager
def dropping(model: nn.Module, adapter: AdapterModule, share: float) -> Iterator[None]:
    """While open, gradients go past a share of the outputs that the adapter edits; without gradients none is dropped.

    Torch's random numbers begin at the same place each time, and are afterwards as they were.
    """

    def drop(_module: nn.Module, _given: Any, output: Any) -> Any:
        state, *rest = output if isinstance(output, tuple) else (output,)
        state = nn.functional.dropout(state, share, training=torch.is_grad_enabled())
        return (state, *rest) if isinstance(output, tuple) else state

    handles = [module.register_forward_hook(drop) for module, _ in adapter.edits(model)] if share else []
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        for handle in handles:
            handle.remove()
