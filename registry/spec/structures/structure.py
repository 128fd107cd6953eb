"""The base class of all configurations of adapters, and the head, which an adapter of any structure may have.

`Structure` holds every question that the rest of the code asks of a configuration, answered for a structure that
does nothing special: no widths, no projections that can be pruned, no head, averaged only where its tensors are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from registry.errors import Internal
from registry.spec.frozen import Frozen, without_nul
from registry.spec.structures.pruned import Pruned

SOFTMAX = "What a prefix or a fusion adds goes through a softmax: there is no exact mixture, and no residual."


def without_none(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """`values` without those of `names` that are None: fields that came later leave earlier digests as they were."""
    return {name: value for name, value in values.items() if value is not None or name not in names}


def widths_together(configs: Iterable[Structure]) -> dict[str, int]:
    """Widths of adapters side by side, by place: the bottleneck, or the rank of each module."""
    total: Counter[str] = Counter()
    for config in configs:
        total.update(config.widths())
    return dict(total)


class Structure(Frozen):
    """The configuration of an adapter: everything but its tensors. `method` names its kind.

    Members are other configurations inside of one (a union's); the prefix of a member is what stands before the names
    of its tensors in those of the whole, `""` for the whole itself.
    """

    method: str

    projections: ClassVar[tuple[str, ...]] = ()
    """Last parts of the paths of linear modules that can be pruned or copied as experts: down first, then up."""
    edits_modules: ClassVar[bool] = False
    """Whether it changes linear modules themselves (LoRA), so that others see them changed."""
    joinable: ClassVar[bool] = False
    """Whether adapters of it can be put side by side as one, exactly (mixing `concat`)."""
    foldable: ClassVar[frozenset[str]] = frozenset()
    """Fields that may differ between adapters that are put side by side: their values end up in the tensors."""
    field_names: ClassVar[Mapping[str, str]] = {}
    """What messages call the values of a field that has words of its own (`The labels`), by the field."""

    def identity(self) -> dict[str, Any]:
        """What of the configuration is in the adapter's digest.

        A field that came later is in it only where it is not its default, so that digests stay what they were.
        """
        return without_none(self.model_dump(mode="json"), "pruned")

    # --- what it is made of -------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[Structure, ...]:
        """The members of a union; everything else is one part, itself."""
        return (self,)

    @property
    def inner(self) -> tuple[str, tuple[Structure, ...]]:
        """The field that holds other configurations, compared field by field, and those; empty where none does."""
        return "", ()

    @property
    def head(self) -> HeadConfig | None:
        """The head that it answers with; None for one that changes what the base model says."""
        return None

    @property
    def takes_head(self) -> bool:
        """Whether a head can be put beside it, for a task."""
        return True

    @property
    def prefix_length(self) -> int:
        """How many positions of the context it takes before every text."""
        return 0

    @property
    def merged(self) -> Structure | None:
        """Of a bank of experts the configuration of its merge, which is served and mixed in its place; else None."""
        return None

    # --- what it is called --------------------------------------------------------------------------

    @property
    def methods(self) -> str:
        """Its method; of a union those of its members, as `bottleneck + prefix`."""
        return self.method

    @property
    def kind(self) -> str:
        """The same with a bottleneck's structure: adapters that differ in it are not mixed."""
        return self.method

    @property
    def described(self) -> str:
        """What messages call it after `is a`: `prefix`, `union of bottleneck + prefix`."""
        return self.method

    def shown(self, field: str) -> object:
        """The value of a field as messages show it."""
        return getattr(self, field)

    # --- serving ------------------------------------------------------------------------------------

    @property
    def not_served(self) -> str | None:
        """Why text is never generated or scored with it, whatever the base model: the end of a sentence about it."""
        return None

    @property
    def is_language_model(self) -> bool:
        """Whether a causal base model with such an adapter is one: it has no head, and is no bank, whose merge is."""
        return self.head is None and self.not_served is None

    # --- widths -------------------------------------------------------------------------------------

    def widths(self) -> dict[str, int]:
        """What adds up when adapters are put side by side, by place: a bottleneck, or the rank of each module."""
        return {}

    @property
    def width(self) -> int:
        """Its bottleneck, or its largest rank; of a union its widest member's; 0 where there is neither."""
        return max(self.widths().values(), default=0)

    @property
    def folded(self) -> frozenset[str]:
        """Fields that may differ between this adapter and others that it is put side by side with."""
        return self.foldable

    @property
    def same_tensors(self) -> tuple[str, str] | None:
        """Tensors that have to be equal in all that are put side by side: their name for people, a part of theirs."""
        return None

    def joined(self, widths: Mapping[str, int]) -> Structure:  # noqa: ARG002
        """The configuration of adapters side by side: this one with these widths, whatever is folded at its default.

        Raises ValidationError where that is none; asked of joinable structures only.
        """
        raise Internal(f"Adapters of method {self.method!r} were to be put side by side.")

    def widened(self, factor: int) -> Self | None:  # noqa: ARG002
        """The structure `factor` times as wide; None where it has no width.

        Raises ValidationError for too large a one.
        """
        return None

    # --- mixing and starting ------------------------------------------------------------------------

    @property
    def is_update(self) -> bool:
        """Whether all that it is is a change of the base model's own matrices, so that several have an exact sum."""
        return self.joinable and self.edits_modules

    @property
    def no_average(self) -> str | None:
        """Why the tensors of several have no average: the end of a sentence about one; None where they have."""
        return None

    @property
    def average_on_request(self) -> bool:
        """Whether `auto` does not average several: the average of the tensors is far from that of the updates."""
        return False

    @property
    def scaled_tensors(self) -> tuple[str, ...]:
        """Endings of the names of tensors that what it adds is proportional to: a `scale` multiplies them."""
        return ()

    @property
    def scalable(self) -> bool:
        """Whether all that it adds inside of the base is proportional to its `scaled_tensors`."""
        return bool(self.scaled_tensors)

    @property
    def no_exact_mixture(self) -> str | None:
        """Why a soup cannot be held against the exact mixture of its ingredients, a sentence; None where it can."""
        return f"There is no exact mixture of {self.method} adapters to compare with, and no residual."

    def start_named(self, init: str) -> str:
        """How it starts where `init` was asked for, as records say it."""
        return init

    # --- pruning ------------------------------------------------------------------------------------

    def prunable(self) -> dict[str, Prunable]:
        """What of it can be pruned by itself, by the prefix of its tensors: itself, or members of a union."""
        return {}

    def pruned_parts(self) -> dict[str, Pruned]:
        """What is said of the masks of each pruned part, by the prefix of its tensors; empty for a dense adapter."""
        return {prefix: one.pruned for prefix, one in self.prunable().items() if one.pruned is not None}

    def with_pruned(self, pruned: Mapping[str, Pruned]) -> Self:  # noqa: ARG002
        """The configuration with exactly these parts pruned, by the prefix of their tensors."""
        return self

    def dense(self) -> Self:
        """The configuration without masks: equal for adapters that differ only in what is pruned."""
        return self.with_pruned({})


class Prunable(Structure):
    """A structure with projections whose entries can be held at zero.

    Each declares `pruned` itself, as its last field: the order of fields is that of the published schema.
    """

    if TYPE_CHECKING:
        pruned: Pruned | None = None

    def prunable(self) -> dict[str, Prunable]:
        """Itself."""
        return {"": self}

    def with_pruned(self, pruned: Mapping[str, Pruned]) -> Self:
        """The same, with or without masks."""
        return self.model_copy(update={"pruned": pruned.get("")})


# --- the head -------------------------------------------------------------------------------------

MAX_LABEL_CHARACTERS = 65_536
"""Of all labels of a head: whoever lists adapters is sent them with every one."""
SHOWN_LABELS = 5
Label = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(without_nul)]


class HeadConfig(Structure):
    """A linear head on the base's last hidden states: what a task adapter answers with, and its label map.

    `classification` reads one position (the first of an encoder, the last of a causal model) and has an output a
    label; `question_answering` reads every position, its outputs being the scores of a span's `start` and `end`.
    """

    method: Literal["head"] = "head"
    task: Literal["classification", "question_answering"]
    labels: tuple[Label, ...] = Field(min_length=2, max_length=4096, fail_fast=True)

    takes_head: ClassVar[bool] = False
    no_exact_mixture: ClassVar[str | None] = None  # it is linear in its tensors
    field_names: ClassVar[Mapping[str, str]] = {"labels": "The labels"}

    @model_validator(mode="after")
    def _labels_fit_the_task(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("the labels of a head differ from each other")
        characters = sum(map(len, self.labels))
        if characters > MAX_LABEL_CHARACTERS:
            raise ValueError(
                f"the labels have {characters} characters in all, and at most {MAX_LABEL_CHARACTERS} can be"
            )
        if self.task == "question_answering" and self.labels != ("start", "end"):
            raise ValueError("the labels of task 'question_answering' are 'start' and 'end'")
        return self

    @property
    def head(self) -> HeadConfig:
        """Itself."""
        return self

    @property
    def purpose(self) -> str:
        """What it answers, for people: `classification (labels 'no', 'yes')`."""
        if self.task == "question_answering":
            return "question answering"
        more = len(self.labels) - SHOWN_LABELS
        labels = ", ".join(map(repr, self.labels[:SHOWN_LABELS])) + (f" and {more} more" if more > 0 else "")
        return f"classification (labels {labels})"

    def shown(self, field: str) -> object:
        """Labels by their number and the first of them: `3 labels (no, yes, maybe)`."""
        if field != "labels":
            return super().shown(field)
        return f"{len(self.labels)} labels ({', '.join(self.labels[:6])}{', ...' if len(self.labels) > 6 else ''})"
