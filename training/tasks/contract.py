"""The contract of a task: how data become rows, how rows become a loss, and which metrics are computed on new data.

The trainer and `training.evaluate` use tasks through this contract alone; `training.tasks` lists them. A task holds no
data: what depends on the data, such as the label map, is in the adapter's configuration.
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
    """A model's output for a batch: states (n, ...), int64 targets (n,), fp32 weights (n,) that sum to 1.

    The states are fp32 logits (n, classes). With a `writer` they are its last hidden states (n, hidden): its output
    layer computes logits from them in parts, because the vocabulary is too large for all n at once. The loss is the
    weighted mean of the targets' cross-entropy in nats.
    """

    states: Tensor
    targets: Tensor
    weights: Tensor
    writer: nn.Module | None = None

    def logits(self, states: Tensor | None = None) -> Tensor:
        """Return fp32 logits (rows, classes) of the given states, by default of all."""
        states = self.states if states is None else states
        return states if self.writer is None else lm_logits(self.writer, states).float()

    def loss(self) -> Tensor:
        """Weighted mean cross-entropy in nats, a scalar."""
        if self.writer is None:
            log_probs = chosen_log_probs(self.states, self.targets)
        else:
            log_probs = log_probs_of(self.writer, self.states, self.targets)
        return -(log_probs * self.weights).sum()


HeadTask = Literal["classification", "question_answering"]


class Task(ABC):
    """One task; the rows of a batch weigh the same, so that the mean over slices of a batch is that of the whole."""

    key: str
    """Its name in options and requests."""
    name: str
    """Its name in messages and records."""
    unit: str = "nats"
    """The unit of its loss."""
    causal: bool = False
    """True if it needs a causal base model."""
    answers: HeadTask | None = None
    """The kind of head that its adapters need; None if the base model's output layer answers."""
    divergence_margin: float = 2.0
    """How far above the first loss, in `unit`, a later loss may be before the training counts as diverged.

    The loss of a step may be at least `state.STEP_MARGIN` above it.
    """

    @abstractmethod
    def items(self, lines: Sequence[tuple[int, Any]], *, where: str) -> list[Any]:
        """Parse the pairs of `read_lines`; raises InvalidParameter with the line that is wrong."""

    @abstractmethod
    def text_of(self, item: Any) -> str:
        """Return the text of one item, for the sample of an adapter's domain."""

    @abstractmethod
    def identity(self, items: Sequence[Any]) -> list[Any]:
        """Return the items as JSON, for the digest that identifies the data in records."""

    def head(self, items: Sequence[Any]) -> HeadConfig | None:
        """Return the head that training on these items needs, or None if the base's output layer answers.

        Raises InvalidParameter for items that make no task (a single label).
        """
        del items
        return None

    @abstractmethod
    def encode(
        self,
        base: LoadedBase,
        items: Sequence[Any],
        *,
        block: int,
        purpose: str = "training",
        at_least: int = MIN_TEXTS,
        head: HeadConfig | None = None,
    ) -> Examples:
        """Encode items as rows of at most `block` tokens; `head` is the adapter's, if the task has one.

        Raises InvalidParameter for fewer than `at_least` items, and for labels that `head` lacks. `purpose` names the
        data in messages.
        """

    @abstractmethod
    def scored(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Scored:
        """Run the base, with `adapter` attached to it by the caller, on rows (batch, width); differentiable."""

    def loss(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Tensor:
        """Mean loss of rows (batch, width) in `unit`, a scalar; override it if there is a cheaper way than `scored`."""
        return self.scored(base, adapter, rows).loss()

    @abstractmethod
    def metrics(
        self, base: LoadedBase, adapter: AdapterModule | None, items: Sequence[Any], *, block: int, batch: int = 8
    ) -> dict[str, float]:
        """Compute the task's metrics on `items`, in windows of at most `block` tokens, under the base with `adapter`.

        Attaches the adapter while it runs. Raises Incompatible for an adapter without the head that the task needs.
        """

    def inputs(self) -> dict[str, Any]:
        """Settings beside the data that decide how rows are encoded, for records and checkpoints."""
        return {}

    def trained(self, record: Mapping[str, Any]) -> Task:
        """Return the task with the options that an adapter with this record was trained with; by default unchanged."""
        del record
        return self

    def check_base(self, base: BaseText) -> None:
        """Raise Incompatible for an encoder if the task needs a causal model."""
        if self.causal and base.shape.kind == "encoder":
            raise Incompatible(
                f"{self.name.capitalize()} is for causal base models, and {base.entry.id!r} is an encoder: classify "
                "with it, or answer questions.",
                param="task",
            )

    def record(self, train: Examples, valid: Examples) -> dict[str, Any]:
        """Counts of the data for an adapter's record."""
        return {**train.counts, **{f"valid_{name}": count for name, count in valid.counts.items()}}

    def outcome(self, *, examples: int, width: int, start_loss: float, best_loss: float) -> dict[str, Any]:
        """The result of a training for its record: examples seen, validation loss at the start and at its best."""
        del width
        return {"examples_trained": examples, "valid_loss_before": start_loss, "valid_loss": best_loss}


def under(base: LoadedBase, adapter: AdapterModule | None) -> AbstractContextManager[None]:
    """Attach `adapter` to the base while open; None attaches nothing."""
    return nullcontext() if adapter is None else attached(base.model, adapter)


def named_head(head: str | None) -> str:
    """The name of a task's head in messages."""
    return "no head" if head is None else f"a head for {head.replace('_', ' ')}"


def with_head(config: AdapterConfig, head: HeadConfig | None) -> AdapterConfig:
    """Return `config` with `head` added; unchanged if there is no head.

    A bank's experts share it. Raises Incompatible for fusions and adapters that have another head.
    """
    if head is None or config == head:
        return config
    if isinstance(config, BankConfig):  # its expert has the head
        return BankConfig.model_validate({**config.model_dump(), "expert": with_head(config.expert, head).model_dump()})
    if not config.takes_head:
        raise Incompatible(
            f"A head for {head.task.replace('_', ' ')} cannot be put beside an adapter of method {config.method!r}: "
            "take a bottleneck, a LoRA, a prefix or MAM.",
            param="config",
        )
    return UnionConfig.model_validate({"members": [*config.components, head]})
