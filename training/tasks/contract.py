"""What an adapter is trained for: how data become rows, how rows become a loss, and what is measured on new data.

The trainer and `training.evaluate` know a task by this alone; the tasks there are, are in `training.tasks`. A task
holds nothing of the data: what depends on them, such as the label map, is in the adapter's configuration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from registry.adapters import AdapterModule, attached
from registry.base_model import BaseText, LoadedBase
from registry.base_model.likelihood import chosen_log_probs, lm_logits, log_probs_of
from registry.errors import Incompatible
from registry.spec import AdapterConfig, BankConfig, HeadConfig, UnionConfig
from training.data import MIN_TEXTS, Examples


class Scored(NamedTuple):
    """What a model says of a batch: states (n, ...), int64 targets (n,), fp32 weights (n,) that sum to 1.

    The states are fp32 logits (n, classes); or, where there is a `writer`, its last hidden states (n, hidden), of
    which its output layer makes logits over a vocabulary that nobody should hold for all n at once. The loss is the
    weighted mean of the targets' cross-entropy in nats.
    """

    states: Tensor
    targets: Tensor
    weights: Tensor
    writer: nn.Module | None = None

    def logits(self, states: Tensor | None = None) -> Tensor:
        """fp32 logits (rows, classes) of some of the states; without an argument, of all."""
        states = self.states if states is None else states
        return states if self.writer is None else lm_logits(self.writer, states).float()

    def loss(self) -> Tensor:
        """Weighted mean cross-entropy in nats, a scalar."""
        found = (
            chosen_log_probs(self.states, self.targets)
            if self.writer is None
            else log_probs_of(self.writer, self.states, self.targets)
        )
        return -(found * self.weights).sum()


HeadTask = Literal["classification", "question_answering"]


class Task(ABC):
    """One task; rows of a batch count alike, so that the mean over parts of a batch is that of the whole."""

    key: str
    """Its name in options and requests."""
    name: str
    """Its name for people, and in records."""
    unit: str = "nats"
    """What its loss is in."""
    causal: bool = False
    """Whether it needs a base model that writes."""
    answers: HeadTask | None = None
    """What of a head its adapters need; None where the base model's own output layer answers."""
    noise: float = 2.0
    """How far above the first loss, in `unit`, that of a step may be without having diverged."""

    @abstractmethod
    def items(self, lines: Sequence[tuple[int, Any]], *, where: str) -> list[Any]:
        """The data of (line number, JSON value) pairs; raises InvalidParameter with the line that is wrong."""

    @abstractmethod
    def text_of(self, item: Any) -> str:
        """The text of one item, for the sample that stands for an adapter's domain."""

    @abstractmethod
    def identity(self, items: Sequence[Any]) -> list[Any]:
        """The items as JSON, for the digest that names the data in records."""

    def head(self, items: Sequence[Any]) -> HeadConfig | None:
        """The head that training on these items needs, its label map included; None where the base's own answers.

        Raises InvalidParameter for items that make no task (a single label).
        """
        del items
        return None

    @abstractmethod
    def encode(
        self, base: LoadedBase, items: Sequence[Any], *, block: int, what: str = "training", at_least: int = MIN_TEXTS,
        head: HeadConfig | None = None,
    ) -> Examples:  # fmt: skip
        """Items as rows of at most `block` tokens; `head` is the adapter's, where the task has one.

        Raises InvalidParameter for fewer than `at_least` items, and for labels that `head` has not.
        """

    @abstractmethod
    def scored(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Scored:
        """What the base, with `adapter` attached to it by the caller, says of rows (batch, width); differentiable."""

    def loss(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Tensor:
        """Mean loss of rows (batch, width) in `unit`, a scalar: that of `scored`, where nothing cheaper is known."""
        return self.scored(base, adapter, rows).loss()

    @abstractmethod
    def metrics(
        self, base: LoadedBase, adapter: AdapterModule | None, items: Sequence[Any], *, block: int, batch: int = 8
    ) -> dict[str, float]:
        """Figures of the task on `items`, in windows of at most `block` tokens, under the base with `adapter`.

        It is put on and taken off here. Raises Incompatible for an adapter without the head that the task needs.
        """

    def inputs(self) -> dict[str, Any]:
        """What beside the data decides how rows come to be, for records and checkpoints."""
        return {}

    def trained(self, record: Mapping[str, Any]) -> Task:
        """The task as an adapter with this record was trained for it: where it was not told, as it is by default."""
        del record
        return self

    def check_base(self, base: BaseText) -> None:
        """Raises Incompatible for an encoder where the task needs a model that writes."""
        if self.causal and base.shape.kind == "encoder":
            raise Incompatible(
                f"{self.name.capitalize()} is for causal base models, and {base.entry.id!r} is an encoder: classify "
                "with it, or answer questions.",
                param="task",
            )

    def record(self, train: Examples, valid: Examples) -> dict[str, Any]:
        """What of the data an adapter's record says."""
        return {**train.counts, **{f"valid_{name}": count for name, count in valid.counts.items()}}

    def outcome(self, *, examples: int, width: int, before: float, best: float) -> dict[str, Any]:
        """What of a training's outcome the record says: examples seen, validation loss before and at its best."""
        del width
        return {"examples_trained": examples, "valid_loss_before": before, "valid_loss": best}


def under(base: LoadedBase, adapter: AdapterModule | None) -> AbstractContextManager[None]:
    """While open, the base runs with `adapter`, or by itself."""
    return nullcontext() if adapter is None else attached(base.model, adapter)


def named_head(head: str | None) -> str:
    """What messages call the head for a task."""
    return "no head" if head is None else f"a head for {head.replace('_', ' ')}"


def with_head(config: AdapterConfig, head: HeadConfig | None) -> AdapterConfig:
    """The adapter of `config` that answers with `head`; as it is where there is none.

    A bank's experts share it. Raises Incompatible for what no head can be put beside: fusions, and what has another.
    """
    if head is None or config == head:
        return config
    if isinstance(config, BankConfig):  # which is put around what has the head
        return BankConfig.model_validate({**config.model_dump(), "expert": with_head(config.expert, head).model_dump()})
    if not config.takes_head:
        raise Incompatible(
            f"A head for {head.task.replace('_', ' ')} cannot be put beside an adapter of method {config.method!r}: "
            "take a bottleneck, a LoRA, a prefix or MAM.",
            param="config",
        )
    return UnionConfig.model_validate({"members": [*config.components, head]})
