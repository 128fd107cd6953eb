"""Train an adapter for a task on a frozen base model; by default language modelling on a domain.

Called by `training.train`, the demo and experiments. Adapters that are to be averaged must start from the same
tensors: the same structure, base, `init` and `init_seed` give the same `init_hash` (AdapterSoup, appendix A.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from registry.adapters import AdapterModule, attached, create, entry_of, from_tensors
from registry.adapters.experts import BankAdapter, merge_bank
from registry.adapters.weights import init_hash, save_tensors
from registry.base_model import LoadedBase
from registry.errors import InvalidParameter, Unavailable
from registry.formats import AdapterContents, AdapterDirectory, write_directory
from registry.progress import Progress, silent
from registry.spec import AdapterConfig, Provenance
from training.checkpoint import Checkpoint, Saving
from training.data import MIN_VALID_TEXTS, Examples
from training.hyperparameters import Hyperparameters
from training.inputs import TrainingInputs, check_block
from training.loop import optimise
from training.losses_file import LossesFile, thinned
from training.methods.adamix import bank_record, consistent_loss
from training.methods.pruning import prune
from training.state import Loss, Objective, TrainingState, is_out_of_memory
from training.tasks import LANGUAGE_MODELLING
from training.tasks.contract import Task

MAX_VALIDATIONS = 1000
"""Approximate most points of the validation history in a record; a provenance is at most 64 KiB."""


@dataclass(frozen=True)
class Trained:
    """A trained adapter: canonical tensors in fp32, the hash of those it started from, and how it was made.

    `record` is plain JSON; it goes into the provenance of the pushed adapter. `resumed_at` is the step of the
    checkpoint that the training continued from, `resume_note` describes what had changed since.
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
        """The provenance of the pushed adapter."""
        return Provenance(
            init_hash=self.init_hash, init_source="trained_here", init_seed=self.init_seed, training=self.record
        )

    def merged(self) -> Trained:
        """Average the experts of a trained bank into one adapter (AdaMix, section 3.3), as the mixing `merge` does.

        Its record describes the bank under `bank`. Raises InvalidParameter for an adapter that is no bank.
        """
        merge = entry_of(self.config).merge
        if merge is None or self.config.merged is None:
            raise InvalidParameter(f"Only a bank of experts can be merged, and this adapter is a {self.config.method}.")
        return replace(
            self,
            config=self.config.merged,
            tensors=merge(self.config, self.tensors),
            record={**self.record, "bank": bank_record(self.config)},
        )

    def write(
        self,
        path: Path,
        base: LoadedBase,
        *,
        domain: str,
        base_id: str | None = None,
        passages: Sequence[str] = (),
        replace: bool = False,
    ) -> AdapterDirectory:
        """Write the adapter as a directory to push, with `passages` as its sample; PEFT can load a LoRA's directory.

        `base_id` is the base model's id on the server it will be pushed to, if known. Raises Conflict if `path` exists
        and `replace` is False.
        """
        contents = AdapterContents(
            config=self.config,
            domain=domain,
            weights=save_tensors(self.tensors),
            base_model=base_id,
            base_fingerprint=base.shape.fingerprint,
            shape=base.shape,
            provenance=self.provenance,
            texts=passages or None,
        )
        return write_directory(path, contents, replace=replace)


def train_adapter(
    base: LoadedBase,
    inputs: TrainingInputs,
    *,
    progress: Progress = silent,
    should_stop: Callable[[], bool] | None = None,
    saving: Saving | None = None,
    losses: Path | None = None,
) -> Trained:
    """Train an adapter and return its best state on the validation data. Leaves `base` unchanged.

    With `saving` the training continues from the checkpoint in its folder, if there is one; losses are written to the
    file `losses` as they come. Raises InvalidParameter for too little data, a block beyond the context or a loss that
    diverges. Raises Incompatible if adapter or task do not fit the base. Raises Conflict for the checkpoint of another
    training, Cancelled when `should_stop` returns True, and Unavailable if memory does not suffice.
    """
    inputs.task.check_base(base)
    check_block(inputs.hyperparameters.block, base.shape, inputs.config)
    train, valid = _encoded(base, inputs)
    record = inputs.record(base)
    adapter = _initial_adapter(base, inputs)
    start_hash = _hash_of_start(adapter)
    identity = {**inputs.identity(record), "init_hash": start_hash}
    with _memory_errors(inputs.hyperparameters), attached(base.model, adapter):
        if inputs.pruning is not None:  # deterministic, so it is repeated when a checkpoint is resumed
            prune(
                adapter,
                loss_of(base, adapter, inputs.task),
                train.rows,
                inputs.pruning,
                batch=inputs.hyperparameters.batch,
                data_digest=record["data"]["train"],
            )
        state = TrainingState(
            adapter,
            _objective(base, adapter, inputs),
            train=train.rows,
            valid=valid.rows,
            hyperparameters=inputs.hyperparameters,
        )
        optimise(
            state,
            progress=progress,
            should_stop=should_stop,
            checkpoint=None if saving is None else Checkpoint(saving, identity),
            losses=None if losses is None else LossesFile(losses),
        )
    return Trained(
        config=adapter.config,
        tensors={name: tensor.detach().cpu() for name, tensor in adapter.state_dict().items()},
        init_hash=start_hash,
        init_seed=inputs.init_seed,
        record={
            **record,
            **inputs.task.record(train, valid),
            **_outcome_record(state, base, adapter.config, inputs.task),
        },
        resumed_at=state.resumed_at,
        resume_note=state.resume_note,
    )


@contextmanager
def _memory_errors(numbers: Hyperparameters) -> Iterator[None]:
    """Raise Unavailable, with the numbers to lower, if torch cannot allocate memory while open."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise Unavailable(
            f"The memory does not suffice to train on {numbers.batch} sequences of {numbers.block} tokens at once: use "
            "a smaller batch with more accumulate, or a smaller block.",
            param="batch",
        ) from error


def _encoded(base: LoadedBase, inputs: TrainingInputs) -> tuple[Examples, Examples]:
    """The training and validation data as rows."""
    task, block, head = inputs.task, inputs.hyperparameters.block, inputs.config.head
    train = task.encode(base, inputs.data.train, block=block, head=head)
    valid = task.encode(base, inputs.data.valid, block=block, head=head, purpose="validation", at_least=MIN_VALID_TEXTS)
    return train, valid


def _initial_adapter(base: LoadedBase, inputs: TrainingInputs) -> AdapterModule:
    """The adapter at step 0 on the base's device."""
    adapter = create(inputs.config, base.shape, seed=inputs.init_seed, init=inputs.init, base=base.model)
    if inputs.start:
        adapter = from_tensors(inputs.config, base.shape, {**adapter.state_dict(), **inputs.start})
    return adapter.to(base.model.device)


def _hash_of_start(adapter: AdapterModule) -> str:
    """The hash shared by adapters that can be averaged; for a bank the hash of its merge."""
    state = adapter.state_dict()
    return init_hash(merge_bank(adapter.config, state) if isinstance(adapter, BankAdapter) else state)


def loss_of(base: LoadedBase, adapter: AdapterModule | None = None, task: Task = LANGUAGE_MODELLING) -> Loss:
    """Return the task's mean loss of rows under the base, with `adapter` attached to it by the caller."""
    return lambda rows: task.loss(base, adapter, rows)


def _objective(base: LoadedBase, adapter: AdapterModule, inputs: TrainingInputs) -> Objective:
    """The task's loss; for a bank the loss of its routes and their consistency, validated as its merge."""
    task, loss = inputs.task, loss_of(base, adapter, inputs.task)
    if not isinstance(adapter, BankAdapter):
        return Objective(loss, margin=task.divergence_margin, unit=task.unit)
    routed = consistent_loss(lambda rows: task.scored(base, adapter, rows), adapter, inputs.consistency or "released")
    return Objective(routed, valid_loss=loss, margin=task.divergence_margin, unit=task.unit)


def _outcome_record(state: TrainingState, base: LoadedBase, config: AdapterConfig, task: Task) -> dict[str, Any]:
    """The part of a record on the outcome and on the adapter's size, without pruned entries, relative to the base."""
    parameters = sum(parameter.numel() for parameter in base.model.parameters())
    masked = sum(pruned.masked for pruned in config.prunings().values())
    trained = sum(parameter.numel() for parameter in state.trained.values()) - masked
    best_loss, best_step = state.best
    return {
        "made_with": state.environments(),
        "rows_a_step": state.order.size,
        "optimizer": "AdamW",
        "parameters": {"trained": trained, "base": parameters, "share": trained / parameters},
        "best_step": best_step,
        **task.outcome(
            examples=state.hyperparameters.steps * state.order.size,
            width=state.train.shape[1],
            start_loss=state.history[0][1],
            best_loss=best_loss,
        ),
        "valid_history": [
            [step, nll] for step, nll in thinned(state.history, at_most=MAX_VALIDATIONS, best_step=best_step)
        ],
        "train_history": [[step, nll] for step, nll in state.curve.points],
    }
