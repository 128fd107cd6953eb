"""Training an adapter for a task on a frozen base model; without another task, for a domain's language.

Called by `soup train` and the demo. Adapters that are to be averaged must start from the same tensors: the same
structure, base, `init` and `init_seed` give the same `init_hash` (AdapterSoup, appendix A.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from registry.adapters import AdapterModule, Init, attached, create, from_tensors
from registry.adapters.experts import BankAdapter, merge_bank
from registry.adapters.weights import init_hash, save_tensors
from registry.base_model import BaseText, LoadedBase
from registry.errors import Incompatible, InvalidParameter
from registry.formats import AdapterContents, AdapterDirectory, write_directory
from registry.names import digest_of
from registry.spec import AdapterConfig, BaseShape, Provenance
from training.checkpoint import Checkpoint, Saving
from training.data import MIN_VALID_TEXTS
from training.loop import MeanNll, Outcome, Progress, optimise
from training.methods.adamix import consistent_loss
from training.methods.pruning import prune
from training.options import Consistency, PruningOptions
from training.recipe import TrainingRecipe
from training.state import Limit
from training.tasks import LANGUAGE_MODELLING
from training.tasks.contract import Examples, Task, named_head

IF_ASKED = ("pruning", "consistency", "start")
"""Keys of `inputs_of` that are there only where the option is: one that is missing says that it was not asked for."""


@dataclass(frozen=True)
class Trained:
    """A trained adapter: canonical tensors in fp32, the hash of those it started from, and how it was made.

    `record` is plain JSON; it goes into the provenance of whatever is pushed. `resumed_at` is the step after which a
    checkpoint was gone on from, `resume_note` what was another then than now: they are in no record.
    """

    config: AdapterConfig
    tensors: dict[str, Tensor]
    init_hash: str
    init_seed: int
    record: dict[str, Any]
    resumed_at: int | None = None
    resume_note: str | None = None

    @property
    def provenance(self) -> Provenance:
        """What a pushed adapter says of its making."""
        return Provenance(
            init_hash=self.init_hash, init_source="trained_here", init_seed=self.init_seed, training=self.record
        )


def train_adapter(
    base: LoadedBase,
    config: AdapterConfig,
    texts: Sequence[Any],
    valid_texts: Sequence[Any],
    *,
    recipe: TrainingRecipe,
    init_seed: int = 0,
    init: Init = "near_identity",
    task: Task = LANGUAGE_MODELLING,
    pruning: PruningOptions | None = None,
    consistency: Consistency | None = None,
    start: Mapping[str, Tensor] | None = None,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
    saving: Saving | None = None,
) -> Trained:
    """Train an adapter on `texts`, keeping its best state on `valid_texts`. Nothing of `base` changes.

    `texts` are the task's items: texts for language modelling. `config` has the head that the task needs
    (`tasks.contract.with_head`). With `pruning` it is pruned before the first step; a bank (AdaMix) is trained with
    `consistency` (by default "released") and scored as its merge; `start` replaces initial tensors by name.

    With `saving` the training goes on from the checkpoint in its folder, where there is one. Raises InvalidParameter
    for too little data, a block beyond the context or a loss that diverges, Incompatible for a base the adapter
    cannot be put on or a task it has no head for, Conflict for the checkpoint of another training, Cancelled when
    `should_stop` says so.
    """
    _check_options(config, task, pruning=pruning, consistency=consistency)
    task.check_base(base)
    check_block(recipe, base.shape, config)
    head = config.head
    train = task.encode(base, texts, block=recipe.block, head=head)
    valid = task.encode(
        base, valid_texts, block=recipe.block, head=head, what="validation", at_least=MIN_VALID_TEXTS
    )  # fmt: skip
    about = inputs_of(
        base, config, texts, valid_texts, recipe=recipe, init=init, task=task, pruning=pruning,
        consistency=consistency, start=start,
    )  # fmt: skip
    adapter = _started(base, config, init_seed=init_seed, init=init, start=start)
    started = _hash_of_start(adapter)
    identity = {**about, "config": config.identity(), "init_seed": init_seed, "init_hash": started}
    if pruning is not None:
        adapter = _pruned(base, adapter, task, train, pruning, batch=recipe.batch, data_digest=about["data"]["train"])
    with attached(base.model, adapter):
        outcome = optimise(
            adapter, _training_loss(base, adapter, task, consistency), train=train.rows, valid=valid.rows,
            recipe=recipe, valid_loss=loss_of(base, adapter, task), limit=Limit(task.noise, task.unit),
            progress=progress, should_stop=should_stop,
            checkpoint=None if saving is None else Checkpoint(saving, identity),
        )  # fmt: skip
    return Trained(
        config=adapter.config,
        tensors={name: tensor.detach().cpu() for name, tensor in adapter.state_dict().items()},
        init_hash=started,
        init_seed=init_seed,
        record={
            **about, **task.record(train, valid), "rows_a_step": outcome.examples // recipe.steps,
            **_outcome_record(outcome, base, adapter.config, task, train),
        },
        resumed_at=outcome.resumed_at,
        resume_note=outcome.resume_note,
    )  # fmt: skip


def inputs_of(
    base: BaseText, config: AdapterConfig, texts: Sequence[Any], valid_texts: Sequence[Any], *,
    recipe: TrainingRecipe, init: Init, task: Task = LANGUAGE_MODELLING, pruning: PruningOptions | None = None,
    consistency: Consistency | None = None, start: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What of the record is known before a training begins: with the configuration and `init_seed` it decides all.

    The data are named by the digests of their texts in their order. What is not asked for has no key, so that records
    and checkpoints of before it was there stay valid.
    """
    about: dict[str, Any] = {
        "task": task.name,
        "base": {"fingerprint": base.shape.fingerprint, "dtype": base.entry.dtype},
        "init": config.start_named(init),
        "data": {"train": digest_of(task.identity(texts)), "valid": digest_of(task.identity(valid_texts))},
        **recipe.model_dump(mode="json"),
        **task.inputs(),
    }
    if pruning is not None:
        about["pruning"] = pruning.model_dump(mode="json")
    if config.merged is not None:
        about["consistency"] = consistency or "released"
    if start is not None:
        about["start"] = init_hash(start)
    return about


def loss_of(base: LoadedBase, adapter: AdapterModule | None = None, task: Task = LANGUAGE_MODELLING) -> MeanNll:
    """The task's mean loss of rows under the base, with `adapter` attached to it by the caller."""
    return lambda rows: task.loss(base, adapter, rows)


def _check_options(
    config: AdapterConfig, task: Task, *, pruning: PruningOptions | None, consistency: Consistency | None
) -> None:
    if consistency is not None and config.merged is None:
        raise InvalidParameter(
            f"Consistency is between the experts of a bank, and this adapter is a {config.method}.",
            param="consistency",
        )
    if pruning is not None and config.merged is not None:
        raise InvalidParameter("The experts of a bank are not pruned: choose one of the two.", param="pruning")
    found = config.head
    if task.answers != (None if found is None else found.task):
        raise Incompatible(
            f"{task.name.capitalize()} needs an adapter with {named_head(task.answers)}, and this {config.method} "
            f"adapter has {named_head(None if found is None else found.task)}.",
            param="config",
        )


def check_block(recipe: TrainingRecipe, shape: BaseShape, config: AdapterConfig) -> None:
    """Raises InvalidParameter where a block does not fit the base model's context beside the adapter's prefix."""
    taken = config.prefix_length
    if recipe.block + taken > shape.context:
        less = f", of which the prefix takes {taken}" if taken else ""
        raise InvalidParameter(
            f"A block of {recipe.block} tokens does not fit the base model's context of {shape.context}{less}.",
            param="block",
        )


def _started(
    base: LoadedBase, config: AdapterConfig, *, init_seed: int, init: Init, start: Mapping[str, Tensor] | None
) -> AdapterModule:
    """The adapter at step 0 on the base's device."""
    adapter = create(config, base.shape, seed=init_seed, init=init, base=base.model)
    if start:
        adapter = from_tensors(config, base.shape, {**adapter.state_dict(), **start})
    return adapter.to(base.model.device)


def _hash_of_start(adapter: AdapterModule) -> str:
    """The hash that adapters share which average well; of a bank that of its merge, for which it is kept."""
    state = adapter.state_dict()
    return init_hash(merge_bank(adapter.config, state) if isinstance(adapter, BankAdapter) else state)


def _pruned(
    base: LoadedBase, adapter: AdapterModule, task: Task, train: Examples, options: PruningOptions, *, batch: int,
    data_digest: str,
) -> AdapterModule:  # fmt: skip
    """The adapter with some entries at zero for good; the same from the same start, also before going on."""
    with attached(base.model, adapter):
        return prune(
            adapter, loss_of(base, adapter, task), train.rows, options, batch=batch, data_digest=data_digest
        )  # fmt: skip


def _training_loss(
    base: LoadedBase, adapter: AdapterModule, task: Task, consistency: Consistency | None
) -> MeanNll:  # fmt: skip
    """The loss of a step: the task's, or for a bank that of its routes and of their agreement."""
    if not isinstance(adapter, BankAdapter):
        return loss_of(base, adapter, task)
    return consistent_loss(lambda rows: task.scored(base, adapter, rows), adapter, consistency or "released")


def write_trained(
    path: Path, trained: Trained, base: LoadedBase, *, domain: str, base_id: str | None = None,
    passages: Sequence[str] = (), replace: bool = False,
) -> AdapterDirectory:  # fmt: skip
    """Write what was trained as a directory to push, with `passages` as its sample; a LoRA's is one that PEFT loads.

    `base_id` is the base model's id on the server it will be pushed to, where that is known. Raises Conflict where
    `path` exists and `replace` is False.
    """
    return write_directory(
        path,
        AdapterContents(
            config=trained.config,
            domain=domain,
            weights=save_tensors(trained.tensors),
            base_model=base_id,
            base_fingerprint=base.shape.fingerprint,
            shape=base.shape,
            provenance=trained.provenance,
            texts=passages or None,
        ),
        replace=replace,
    )


def _outcome_record(
    outcome: Outcome, base: LoadedBase, config: AdapterConfig, task: Task, train: Examples
) -> dict[str, Any]:
    """What came of it, and how large it is beside the base model; pruned entries are not trained."""
    parameters = sum(parameter.numel() for parameter in base.model.parameters())
    masked = sum(pruned.masked for pruned in config.pruned_parts().values())
    trained = outcome.trained_parameters - masked
    return {
        "optimizer": "AdamW",
        "parameters": {"trained": trained, "base": parameters, "share": trained / parameters},
        "best_step": outcome.best_step,
        **task.outcome(
            examples=outcome.examples, width=train.rows.shape[1], before=outcome.valid_before, best=outcome.valid_best
        ),
        "valid_history": [[step, nll] for step, nll in outcome.history],
        "train_history": [[step, nll] for step, nll in outcome.train_history],
    }
