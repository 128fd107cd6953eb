"""The inputs of a training: everything that decides its result, as one value, built by `training.build` from a spec.

The trainer takes it, a checkpoint and a record identify it, and existing directories are compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from registry.adapters import Init
from registry.adapters.weights import init_hash
from registry.base_model import BaseText
from registry.errors import Conflict, InvalidParameter
from registry.formats import AdapterDirectory
from registry.names import digest_of
from registry.spec import AdapterConfig, BaseShape
from training.checkpoint import differences
from training.data import Data
from training.hyperparameters import Consistency, Hyperparameters, PruningOptions
from training.methods.adamix import bank_record
from training.tasks import LANGUAGE_MODELLING
from training.tasks.contract import Task

_OPTIONAL_KEYS = ("pruning", "consistency", "start")
"""Keys that a record has only if the option was used."""


@dataclass(frozen=True)
class TrainingInputs:
    """The inputs of a training, its start, numbers and data: on one base model the result is the same to the bit.

    `data` are the task's items: texts for language modelling. `config` has the head that the task needs
    (`tasks.contract.with_head`). With `pruning` the adapter is pruned before the first step; a bank (AdaMix) is
    trained with `consistency` (None: "released") and scored as its merge; `start` replaces initial tensors by name.
    """

    config: AdapterConfig
    data: Data
    hyperparameters: Hyperparameters
    task: Task = LANGUAGE_MODELLING
    init: Init = "near_identity"
    init_seed: int = 0
    start: Mapping[str, Tensor] | None = None
    pruning: PruningOptions | None = None
    consistency: Consistency | None = None

    def record(self, base: BaseText) -> dict[str, Any]:
        """The part of an adapter's record that its inputs decide, as JSON, without config and `init_seed`.

        The data are identified by digests of their items in order. Unused options have no key, so that records and
        checkpoints older than an option stay valid.
        """
        train, valid = (digest_of(self.task.identity(items)) for items in (self.data.train, self.data.valid))
        record: dict[str, Any] = {
            "task": self.task.name,
            "base": {"fingerprint": base.shape.fingerprint, "dtype": base.entry.dtype},
            "init": self.config.start_named(self.init),
            "data": {"train": train, "valid": valid},
            **self.hyperparameters.model_dump(mode="json"),
            **self.task.inputs(),
        }
        if self.pruning is not None:
            record["pruning"] = self.pruning.model_dump(mode="json")
        if self.config.merged is not None:
            record["consistency"] = self.consistency or "released"
        if self.start is not None:
            record["start"] = init_hash(self.start)
        return record

    def identity(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """All that decides the result, as JSON, but for the hash of the start; `record` is that of these inputs."""
        return {**record, "config": self.config.identity(), "init_seed": self.init_seed}

    def refuse_another(self, folder: AdapterDirectory, base: BaseText, *, advice: str, of_bank: bool = False) -> None:
        """Raise Conflict, naming each difference, if an existing adapter is not the result of these inputs.

        For a bank of experts that is its merge or, with `of_bank`, the bank. `advice` ends the message.
        """
        problems = self._differences(folder, base, of_bank=of_bank)
        if problems:
            raise Conflict(
                f"{folder.path} exists, and is of another training: {problems[0]}. {advice}",
                param="out",
                problems=[f"It differs in {problem}." for problem in problems],
            )

    def _differences(self, folder: AdapterDirectory, base: BaseText, *, of_bank: bool) -> list[str]:
        """`name (value there, value here)` for each difference."""
        record, record_here = folder.provenance.training, self.record(base)
        names = dict.fromkeys([*record_here, *_OPTIONAL_KEYS])
        changes = differences(
            {name: record.get(name) for name in names}, {name: record_here.get(name) for name in names}
        )
        merged = None if of_bank else self.config.merged
        changes += differences(record.get("bank"), None if merged is None else bank_record(self.config), at="bank")
        config = merged or self.config
        # the pruned entries depend on the data, and the record says that it was pruned
        changes += differences(folder.config.dense().identity(), config.identity(), at="config")
        return changes + differences(folder.provenance.init_seed, self.init_seed, at="init_seed")


def check_block(block: int, shape: BaseShape, config: AdapterConfig) -> None:
    """Raise InvalidParameter if a block does not fit the base model's context beside the adapter's prefix."""
    prefix = config.prefix_length
    if block + prefix > shape.context:
        less = f", of which the prefix takes {prefix}" if prefix else ""
        raise InvalidParameter(
            f"A block of {block} tokens does not fit the base model's context of {shape.context}{less}.", param="block"
        )
