"""Everything that decides what a training gives, as one value: made by `build` from a spec, or by hand.

The trainer takes it, a checkpoint and a record name it, and what is there already is compared with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from registry.adapters import Init
from registry.adapters.weights import init_hash
from registry.base_model import BaseText
from registry.errors import Conflict, Incompatible, InvalidParameter
from registry.formats import AdapterDirectory
from registry.names import digest_of
from registry.spec import AdapterConfig, BaseShape
from training.checkpoint import differences
from training.data import Data
from training.hyperparameters import Consistency, Hyperparameters, PruningOptions
from training.methods.adamix import bank_record
from training.tasks import LANGUAGE_MODELLING
from training.tasks.contract import Task, named_head

_IF_ASKED = ("pruning", "consistency", "start")
"""Keys of a record that are there only where the option is: one that is missing says that it was not asked for."""


@dataclass(frozen=True)
class TrainingInputs:
    """What is trained, from which start, how and on which data: on one base model it gives one adapter, to the bit.

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

    def check(self, base: BaseText) -> None:
        """Raises InvalidParameter and Incompatible for what does not go together, with each other or with the base."""
        if self.consistency is not None and self.config.merged is None:
            raise InvalidParameter(
                f"Consistency is between the experts of a bank, and this adapter is a {self.config.method}.",
                param="consistency",
            )
        if self.pruning is not None and self.config.merged is not None:
            raise InvalidParameter("The experts of a bank are not pruned: choose one of the two.", param="pruning")
        found = None if self.config.head is None else self.config.head.task
        if self.task.answers != found:
            raise Incompatible(
                f"{self.task.name.capitalize()} needs an adapter with {named_head(self.task.answers)}, and this "
                f"{self.config.method} adapter has {named_head(found)}.",
                param="config",
            )
        self.task.check_base(base)
        check_block(self.hyperparameters.block, base.shape, self.config)

    def record(self, base: BaseText) -> dict[str, Any]:
        """What of an adapter's record is known before it is trained, as JSON; with config and `init_seed` it is all.

        The data are named by the digests of their items in their order. What is not asked for has no key, so that
        records and checkpoints of before it was there stay valid.
        """
        train, valid = (digest_of(self.task.identity(items)) for items in (self.data.train, self.data.valid))
        about: dict[str, Any] = {
            "task": self.task.name,
            "base": {"fingerprint": base.shape.fingerprint, "dtype": base.entry.dtype},
            "init": self.config.start_named(self.init),
            "data": {"train": train, "valid": valid},
            **self.hyperparameters.model_dump(mode="json"),
            **self.task.inputs(),
        }
        if self.pruning is not None:
            about["pruning"] = self.pruning.model_dump(mode="json")
        if self.config.merged is not None:
            about["consistency"] = self.consistency or "released"
        if self.start is not None:
            about["start"] = init_hash(self.start)
        return about

    def refuse_another(self, folder: AdapterDirectory, base: BaseText, *, advice: str, of_bank: bool = False) -> None:
        """Raises Conflict, naming every difference, where an adapter that is there is not what is made of these.

        Of a bank of experts that is its merge, or with `of_bank` the bank. `advice` ends the message.
        """
        found = self._differences(folder, base, of_bank=of_bank)
        if found:
            raise Conflict(
                f"{folder.path} is there, and of another training: {found[0]}. {advice}",
                param="out",
                problems=[f"It differs in {one}." for one in found],
            )

    def _differences(self, folder: AdapterDirectory, base: BaseText, *, of_bank: bool) -> list[str]:
        """`name (value there, value here)` for each."""
        record, now = folder.provenance.training, self.record(base)
        names = dict.fromkeys([*now, *_IF_ASKED])  # what was asked for there, and is not here, differs too
        found = differences(*({name: values.get(name) for name in names} for values in (record, now)))
        merged = None if of_bank else self.config.merged
        found += differences(record.get("bank"), None if merged is None else bank_record(self.config), at="bank")
        made = merged or self.config
        there = folder.config.dense()  # what was pruned depends on the data; that it was, the record says
        found += differences(there.identity(), made.identity(), at="config")
        return found + differences(folder.provenance.init_seed, self.init_seed, at="init_seed")


def check_block(block: int, shape: BaseShape, config: AdapterConfig) -> None:
    """Raises InvalidParameter where a block does not fit the base model's context beside the adapter's prefix."""
    taken = config.prefix_length
    if block + taken > shape.context:
        less = f", of which the prefix takes {taken}" if taken else ""
        raise InvalidParameter(
            f"A block of {block} tokens does not fit the base model's context of {shape.context}{less}.", param="block"
        )
