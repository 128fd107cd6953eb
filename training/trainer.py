"""Training an adapter for a domain: language modelling on a frozen base model.

Called by `soup train` and the demo. Adapters that are to be averaged must start from the same tensors: the same
structure, base, `init` and `init_seed` give the same `init_hash` (AdapterSoup, appendix A.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.adapters import Init, attached, create
from registry.adapters.weights import init_hash, save_tensors
from registry.base_model import LoadedBase
from registry.errors import InvalidParameter
from registry.folder import AdapterFolder, write_folder
from registry.likelihood import token_log_probs
from registry.names import digest_of
from registry.spec import AdapterConfig, LoraConfig, Provenance
from training.checkpoint import Checkpoint, Saving
from training.loop import MeanNll, Outcome, Progress, optimise
from training.recipe import TrainingRecipe
from training.texts import MIN_VALID_TEXTS, Packed, pack

LORA_INIT = "zero_b"
"""How every LoRA starts, whatever `init` says: A uniform, B zero."""


@dataclass(frozen=True)
class Trained:
    """A trained adapter: canonical tensors in fp32, the hash of those it started from, and how it was made.

    `record` is plain JSON; it goes into the provenance of whatever is pushed. `resumed_at` is the step after which a
    checkpoint was gone on from: it is in no record, for the adapter is the same either way.
    """

    config: AdapterConfig
    tensors: dict[str, Tensor]
    init_hash: str
    init_seed: int
    record: dict[str, Any]
    resumed_at: int | None = None

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
    recipe: TrainingRecipe,
    init_seed: int = 0,
    init: Init = "near_identity",
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
    saving: Saving | None = None,
) -> Trained:
    """Train an adapter on `texts`, keeping its best state on `valid_texts`. Nothing of `base` changes.

    With `saving` the training goes on from the checkpoint in its folder, where there is one. Raises InvalidParameter
    for too little text, a block beyond the context or a loss that diverges, Incompatible for a base the adapter
    cannot be put on, Conflict for the checkpoint of another training, Cancelled when `should_stop` says so.
    """
    _check_block(recipe, base)
    train = pack(texts, base.tokenize, block=recipe.block)
    valid = pack(valid_texts, base.tokenize, block=recipe.block, what="validation", at_least=MIN_VALID_TEXTS)
    adapter = create(config, base.shape, seed=init_seed, init=init, base=base.model)
    about = inputs_of(base, config, texts, valid_texts, recipe=recipe, init=init)
    started = init_hash(adapter.state_dict())
    identity = {**about, "config": config.identity(), "init_seed": init_seed, "init_hash": started}
    with attached(base.model, adapter.to(base.model.device)):
        outcome = optimise(
            adapter, mean_nll_of(base), train=train.blocks, valid=valid.blocks, recipe=recipe, progress=progress,
            should_stop=should_stop, checkpoint=None if saving is None else Checkpoint(saving, identity),
        )  # fmt: skip
    return Trained(
        config=config,
        tensors={name: tensor.detach().cpu() for name, tensor in adapter.state_dict().items()},
        init_hash=started,
        init_seed=init_seed,
        record={**about, **_data_record(train, valid), **_outcome_record(outcome, base)},
        resumed_at=outcome.resumed_at,
    )


def inputs_of(
    base: LoadedBase, config: AdapterConfig, texts: Sequence[str], valid_texts: Sequence[str], *,
    recipe: TrainingRecipe, init: Init,
) -> dict[str, Any]:  # fmt: skip
    """What of the record is known before a training begins: with the configuration and `init_seed` it decides all.

    The data are named by the digests of their texts in their order.
    """
    return {
        "task": "language modelling",
        "base": {"fingerprint": base.shape.fingerprint, "dtype": base.entry.dtype},
        "init": LORA_INIT if isinstance(config, LoraConfig) else init,
        "data": {"train": digest_of(list(texts)), "valid": digest_of(list(valid_texts))},
        **recipe.model_dump(mode="json"),
    }


def mean_nll_of(base: LoadedBase) -> MeanNll:
    """Mean NLL per predicted token of packed blocks under the base, with whatever is attached to it.

    Only the parts above the first adapter keep what a backward pass needs: the base's parameters ask for no
    gradient, so what lies below the first trained tensor leaves no graph.
    """

    def mean_nll(blocks: Tensor) -> Tensor:  # (batch, block)
        ids = blocks.to(base.model.device)
        return -token_log_probs(base.model, ids, torch.ones_like(ids)).mean()

    return mean_nll


def write_trained(
    path: Path, trained: Trained, base: LoadedBase, *, domain: str, base_id: str | None = None,
    passages: Sequence[str] = (), replace: bool = False,
) -> AdapterFolder:  # fmt: skip
    """Write what was trained as a directory to push, with `passages` as its sample; a LoRA's is one that PEFT loads.

    `base_id` is the base model's id on the server it will be pushed to, where that is known. Raises Conflict where
    `path` exists and `replace` is False.
    """
    return write_folder(
        path,
        config=trained.config,
        domain=domain,
        weights=save_tensors(trained.tensors),
        base_model=base_id,
        base_fingerprint=base.shape.fingerprint,
        shape=base.shape,
        provenance=trained.provenance,
        texts=passages or None,
        replace=replace,
    )


def _check_block(recipe: TrainingRecipe, base: LoadedBase) -> None:
    if recipe.block > base.shape.context:
        raise InvalidParameter(
            f"A block of {recipe.block} tokens does not fit the base model's context of {base.shape.context}.",
            param="block",
        )


def _data_record(train: Packed, valid: Packed) -> dict[str, Any]:
    """What went in, and what of it was left out."""
    return {
        "texts": train.texts,
        "texts_left_out": train.texts_left_out,
        "texts_cut": train.texts_cut,
        "tokens_available": int(train.blocks.size),
        "tokens_left_out": train.tokens_left_out,
        "valid_texts": valid.texts,
        "valid_tokens": int(valid.blocks.size),
        "valid_tokens_left_out": valid.tokens_left_out,
    }


def _outcome_record(outcome: Outcome, base: LoadedBase) -> dict[str, Any]:
    """What came of it, and how large it is beside the base model."""
    parameters = sum(parameter.numel() for parameter in base.model.parameters())
    return {
        "optimizer": "AdamW",
        "parameters": {
            "trained": outcome.trained_parameters,
            "base": parameters,
            "share": outcome.trained_parameters / parameters,
        },
        "tokens_trained": outcome.train_tokens,
        "best_step": outcome.best_step,
        "valid_perplexity_before": math.exp(outcome.valid_before),
        "valid_perplexity": math.exp(outcome.valid_best),
        "valid_history": [[step, nll] for step, nll in outcome.history],
        "train_history": [[step, nll] for step, nll in outcome.train_history],
    }
