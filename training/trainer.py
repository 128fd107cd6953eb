"""Training an adapter for a task on a frozen base model; without another task, for a domain's language.

Called by `training.train`, the demo and experiments. Adapters that are to be averaged must start from the same
tensors: the same structure, base, `init` and `init_seed` give the same `init_hash` (AdapterSoup, appendix A.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from registry.adapters import AdapterModule, attached, create, entry_of, from_tensors
from registry.adapters.experts import BankAdapter, merge_bank
from registry.adapters.weights import init_hash, save_tensors
from registry.base_model import LoadedBase
from registry.errors import InvalidParameter
from registry.formats import AdapterContents, AdapterDirectory, write_directory
from registry.progress import Progress, silent
from registry.spec import AdapterConfig, Provenance
from training.checkpoint import Checkpoint, Saving
from training.data import MIN_VALID_TEXTS, Examples
from training.inputs import TrainingInputs
from training.loop import Outcome, optimise
from training.losses_file import LossesFile
from training.methods.adamix import bank_record, consistent_loss
from training.methods.pruning import prune
from training.state import Loss, Objective, TrainingState
from training.tasks import LANGUAGE_MODELLING
from training.tasks.contract import Task

MOST_VALIDATIONS = 1000
"""Points of a validation history that a record keeps, about: a provenance has room for 64 KiB."""


@dataclass(frozen=True)
class Trained:
    """A trained adapter: canonical tensors in fp32, the hash of those it started from, and how it was made.

    `record` is plain JSON; it goes into the provenance of whatever is pushed. `resumed_at` is the step after which a
    checkpoint was gone on from, `resume_note` what was another then than now: of this the record has `made_with` alone.
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

    def merged(self) -> Trained:
        """The adapter that a trained bank's experts average to (AdaMix, section 3.3), as the mixing `merge` makes it.

        `bank` in its record says of what it was made. Raises InvalidParameter for what is no bank.
        """
        merge = entry_of(self.config).merge
        if merge is None or self.config.merged is None:
            raise InvalidParameter(f"What is merged is a bank of experts, and this adapter is a {self.config.method}.")
        return replace(
            self,
            config=self.config.merged,
            tensors=merge(self.config, self.tensors),
            record={**self.record, "bank": bank_record(self.config)},
        )

    def write(
        self, path: Path, base: LoadedBase, *, domain: str, base_id: str | None = None, passages: Sequence[str] = (),
        replace: bool = False,
    ) -> AdapterDirectory:  # fmt: skip
        """Write it as a directory to push, with `passages` as its sample; a LoRA's is one that PEFT loads.

        `base_id` is the base model's id on the server it will be pushed to, where that is known. Raises Conflict where
        `path` exists and `replace` is False.
        """
        contents = AdapterContents(
            config=self.config, domain=domain, weights=save_tensors(self.tensors), base_model=base_id,
            base_fingerprint=base.shape.fingerprint, shape=base.shape, provenance=self.provenance,
            texts=passages or None,
        )  # fmt: skip
        return write_directory(path, contents, replace=replace)


def train_adapter(
    base: LoadedBase, inputs: TrainingInputs, *, progress: Progress = silent,
    should_stop: Callable[[], bool] | None = None, saving: Saving | None = None, losses: Path | None = None,
) -> Trained:  # fmt: skip
    """Train an adapter, keeping its best state on the validation data. Nothing of `base` changes.

    With `saving` the training goes on from the checkpoint in its folder, where there is one; its losses are written to
    the file `losses` as they grow. Raises InvalidParameter
    for too little data, a block beyond the context or a loss that diverges, Incompatible for a base the adapter
    cannot be put on or a task it has no head for, Conflict for the checkpoint of another training, Cancelled when
    `should_stop` says so.
    """
    inputs.check(base)
    train, valid = _encoded(base, inputs)
    about = inputs.record(base)
    adapter = _started(base, inputs)
    started = _hash_of_start(adapter)
    identity = {**about, "config": inputs.config.identity(), "init_seed": inputs.init_seed, "init_hash": started}
    with attached(base.model, adapter):
        if inputs.pruning is not None:  # the same from the same start, also where a checkpoint is gone on from
            prune(
                adapter, loss_of(base, adapter, inputs.task), train.rows, inputs.pruning,
                batch=inputs.hyperparameters.batch, data_digest=about["data"]["train"],
            )  # fmt: skip
        state = TrainingState(
            adapter, _objective(base, adapter, inputs), train=train.rows, valid=valid.rows,
            hyperparameters=inputs.hyperparameters,
        )  # fmt: skip
        outcome = optimise(
            state, progress=progress, should_stop=should_stop,
            checkpoint=None if saving is None else Checkpoint(saving, identity),
            losses=None if losses is None else LossesFile(losses),
        )  # fmt: skip
    return Trained(
        config=adapter.config,
        tensors={name: tensor.detach().cpu() for name, tensor in adapter.state_dict().items()},
        init_hash=started,
        init_seed=inputs.init_seed,
        record={
            **about, **inputs.task.record(train, valid),
            "made_with": list(outcome.made_with),
            "rows_a_step": outcome.examples // inputs.hyperparameters.steps,
            **_outcome_record(outcome, base, adapter.config, inputs.task, width=train.rows.shape[1]),
        },
        resumed_at=outcome.resumed_at,
        resume_note=outcome.resume_note,
    )  # fmt: skip


def _encoded(base: LoadedBase, inputs: TrainingInputs) -> tuple[Examples, Examples]:
    """The training and validation data as rows."""
    task, block, head = inputs.task, inputs.hyperparameters.block, inputs.config.head
    return task.encode(base, inputs.data.train, block=block, head=head), task.encode(
        base, inputs.data.valid, block=block, head=head, what="validation", at_least=MIN_VALID_TEXTS
    )


def _started(base: LoadedBase, inputs: TrainingInputs) -> AdapterModule:
    """The adapter at step 0 on the base's device."""
    adapter = create(inputs.config, base.shape, seed=inputs.init_seed, init=inputs.init, base=base.model)
    if inputs.start:
        adapter = from_tensors(inputs.config, base.shape, {**adapter.state_dict(), **inputs.start})
    return adapter.to(base.model.device)


def _hash_of_start(adapter: AdapterModule) -> str:
    """The hash that adapters share which average well; of a bank that of its merge, for which it is kept."""
    state = adapter.state_dict()
    return init_hash(merge_bank(adapter.config, state) if isinstance(adapter, BankAdapter) else state)


def loss_of(base: LoadedBase, adapter: AdapterModule | None = None, task: Task = LANGUAGE_MODELLING) -> Loss:
    """The task's mean loss of rows under the base, with `adapter` attached to it by the caller."""
    return lambda rows: task.loss(base, adapter, rows)


def _objective(base: LoadedBase, adapter: AdapterModule, inputs: TrainingInputs) -> Objective:
    """The task's loss; for a bank that of its routes and of their agreement, validated as its merge."""
    task, loss = inputs.task, loss_of(base, adapter, inputs.task)
    if not isinstance(adapter, BankAdapter):
        return Objective(loss, above=task.noise, unit=task.unit)
    routed = consistent_loss(lambda rows: task.scored(base, adapter, rows), adapter, inputs.consistency or "released")
    return Objective(routed, valid_loss=loss, above=task.noise, unit=task.unit)


def thinned(history: Sequence[tuple[int, float]], best_step: int) -> list[tuple[int, float]]:
    """At most about MOST_VALIDATIONS of a history, evenly; the first, the last and the best step's are among them."""
    every = math.ceil(len(history) / MOST_VALIDATIONS)
    last = len(history) - 1
    return [one for number, one in enumerate(history) if number % every == 0 or number == last or one[0] == best_step]


def _outcome_record(
    outcome: Outcome, base: LoadedBase, config: AdapterConfig, task: Task, *, width: int
) -> dict[str, Any]:
    """What a record says of the outcome, and of the adapter's size beside the base model, pruned entries left out."""
    parameters = sum(parameter.numel() for parameter in base.model.parameters())
    masked = sum(pruned.masked for pruned in config.prunings().values())
    trained = outcome.trained_parameters - masked
    return {
        "optimizer": "AdamW",
        "parameters": {"trained": trained, "base": parameters, "share": trained / parameters},
        "best_step": outcome.best_step,
        **task.outcome(examples=outcome.examples, width=width, before=outcome.valid_before, best=outcome.valid_best),
        "valid_history": [[step, nll] for step, nll in thinned(outcome.history, outcome.best_step)],
        "train_history": [[step, nll] for step, nll in outcome.train_history],
    }
