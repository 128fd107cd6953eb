"""Training an adapter for a domain: language modelling on a frozen base model.

Called by `soup train` and the demo. Adapters that are to be averaged must start from the same tensors: the same
structure, base, `init` and `init_seed` give the same `init_hash` (AdapterSoup, appendix A.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from registry.adapters import Init, attached, create
from registry.adapters.weights import init_hash
from registry.base_model import LoadedBase
from registry.errors import InvalidParameter
from registry.likelihood import token_log_probs
from registry.spec import AdapterConfig, Provenance
from training.loop import MeanNll, Outcome, Progress, Recipe, optimise
from training.texts import MIN_VALID_TEXTS, pack


@dataclass(frozen=True)
class Trained:
    """A trained adapter: canonical tensors in fp32, the hash of those it started from, and how it was made.

    `record` is plain JSON; it goes into the provenance of whatever is pushed.
    """

    config: AdapterConfig
    tensors: dict[str, Tensor]
    init_hash: str
    init_seed: int
    record: dict[str, Any]

    @property
    def provenance(self) -> Provenance:
        """What a pushed adapter says of its making."""
        return Provenance(
            init_hash=self.init_hash, init_source="trained_here", init_seed=self.init_seed, training=self.record
        )


def train_adapter(
    base: LoadedBase,
    config: AdapterConfig,
    texts: Sequence[str],
    valid_texts: Sequence[str],
    *,
    recipe: Recipe,
    init_seed: int = 0,
    init: Init = "near_identity",
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Trained:
    """Train an adapter on `texts`, keeping its best state on `valid_texts`. Nothing of `base` changes.

    Raises InvalidParameter for too little text, a block beyond the context or a loss that diverges, Incompatible
    for a base the adapter cannot be put on, Cancelled when `should_stop` says so.
    """
    _check_block(recipe, base)
    train = pack(texts, base.tokenize, block=recipe.block)
    valid = pack(valid_texts, base.tokenize, block=recipe.block, what="validation", at_least=MIN_VALID_TEXTS)
    adapter = create(config, base.shape, seed=init_seed, init=init, base=base.model)
    started = init_hash(adapter.state_dict())
    with attached(base.model, adapter.to(base.model.device)):
        outcome = optimise(
            adapter, mean_nll_of(base), train=train, valid=valid, recipe=recipe, progress=progress,
            should_stop=should_stop,
        )  # fmt: skip
    return Trained(
        config=config,
        tensors={name: tensor.detach().cpu() for name, tensor in adapter.state_dict().items()},
        init_hash=started,
        init_seed=init_seed,
        record=_record(recipe, outcome, init=init, texts=len(texts), blocks=train),
    )


def mean_nll_of(base: LoadedBase) -> MeanNll:
    """Mean NLL per predicted token of packed blocks under the base, with whatever is attached to it.

    Only the parts above the first adapter keep what a backward pass needs: the base's parameters ask for no
    gradient, so what lies below the first trained tensor leaves no graph.
    """

    def mean_nll(blocks: Tensor) -> Tensor:  # (batch, block)
        ids = blocks.to(base.model.device)
        return -token_log_probs(base.model, ids, torch.ones_like(ids)).mean()

    return mean_nll


def _check_block(recipe: Recipe, base: LoadedBase) -> None:
    if recipe.block > base.shape.context:
        raise InvalidParameter(
            f"A block of {recipe.block} tokens does not fit the base model's context of {base.shape.context}.",
            param="block",
        )


def _record(recipe: Recipe, outcome: Outcome, *, init: Init, texts: int, blocks: np.ndarray) -> dict[str, Any]:
    """What was done and what came of it."""
    return {
        "task": "language modelling",
        "init": init,
        "optimizer": "AdamW",
        "schedule": "linear warm-up, then linear to zero",
        **recipe.model_dump(mode="json"),
        "texts": texts,
        "tokens_available": int(blocks.size),
        "tokens_trained": outcome.train_tokens,
        "best_step": outcome.best_step,
        "valid_perplexity_before": math.exp(outcome.valid_before),
        "valid_perplexity": math.exp(outcome.valid_best),
        "valid_history": [[step, nll] for step, nll in outcome.history],
    }
