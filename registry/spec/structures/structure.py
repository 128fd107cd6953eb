"""The base class of adapter configurations, and the configuration of heads.

`Structure` is the interface that other code uses, with defaults: no widths, no projections that can be pruned, no head,
no exact mixture.
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
    """`values` without those of `names` that are None: fields added later then do not change earlier digests."""
    return {name: value for name, value in values.items() if value is not None or name not in names}


def widths_together(configs: Iterable[Structure]) -> dict[str, int]:
    """The sums of the adapters' widths, by key: the bottleneck, or the rank of each module."""
    total: Counter[str] = Counter()
    for config in configs:
        total.update(config.widths())
    return dict(total)


class Structure(Frozen):
    """The configuration of an adapter, of the kind `method`.

    It may contain others as members, as in a union. The prefix of a member is that of the names of its tensors, `""`
    for the configuration itself.
    """

    method: str

    projections: ClassVar[tuple[str, ...]] = ()
    """Names of linear modules that can be pruned or copied as experts, the last component of paths: down, then up."""
    edits_modules: ClassVar[bool] = False
    """True if it changes linear modules themselves (LoRA), so that other adapters see them changed."""
    joinable: ClassVar[bool] = False
    """True if several can be put side by side as one, exactly (mixing `concat`)."""
    foldable: ClassVar[frozenset[str]] = frozenset()
    """Fields that may differ between adapters put side by side, as their values are folded into the tensors."""
    field_names: ClassVar[Mapping[str, str]] = {}
    """The subject that messages use for the values of a field (`The labels`), by field."""

    def identity(self) -> dict[str, Any]:
        """The fields that the adapter's digest includes.

        Fields added later are included only where they are not the default, so that digests do not change.
        """
        return without_none(self.model_dump(mode="json"), "pruned")

    # --- composition --------------------------------------------------------------------------------

    @property
    def components(self) -> tuple[Structure, ...]:
        """The members of a union; other configurations are their only component."""
        return (self,)

    @property
    def inner(self) -> tuple[str, tuple[Structure, ...]]:
        """The field that contains other configurations, and these, which are compared field by field."""
        return "", ()

    @property
    def head(self) -> HeadConfig | None:
        """The head that replaces the base model's outputs; None where there is none."""
        return None

    @property
    def takes_head(self) -> bool:
        """Return True if a head can be put beside it, for a task."""
        return True

    @property
    def prefix_length(self) -> int:
        """The number of positions of the context that it uses before a text."""
        return 0

    @property
    def merged(self) -> Structure | None:
        """The configuration of the merge of a bank of experts, which is served and mixed in its place; else None."""
        return None

    # --- names --------------------------------------------------------------------------------------

    @property
    def methods(self) -> str:
        """The method, or those of a union's members, as `bottleneck + prefix`."""
        return self.method

    @property
    def kind(self) -> str:
        """The methods, with a bottleneck's structure for it: adapters of different kinds are not mixed."""
        return self.method

    @property
    def described(self) -> str:
        """The noun that messages use after `is a`: `prefix`, `union of bottleneck + prefix`."""
        return self.method

    def format_field(self, field: str) -> object:
        """The value of a field for messages."""
        return getattr(self, field)

    # --- serving ------------------------------------------------------------------------------------

    @property
    def not_served(self) -> str | None:
        """The reason why it cannot be served with any base model, as the predicate of a sentence; None if it can."""
        return None

    @property
    def is_language_model(self) -> bool:
        """Return True if it is a language model on a causal base model: it has no head, and is no bank."""
        return self.head is None and self.not_served is None

    # --- widths -------------------------------------------------------------------------------------

    def widths(self) -> dict[str, int]:
        """The widths that add up when adapters are put side by side: a bottleneck (`""`), or ranks by module."""
        return {}

    @property
    def width(self) -> int:
        """The bottleneck or the largest rank; that of the widest member of a union; 0 where there is neither."""
        return max(self.widths().values(), default=0)

    @property
    def folded(self) -> frozenset[str]:
        """Fields that may differ from those of adapters that it is put side by side with."""
        return self.foldable

    @property
    def same_tensors(self) -> tuple[str, str] | None:
        """Tensors that must be equal in adapters put side by side: a name for messages, and a substring of names."""
        return None

    def joined(self, widths: Mapping[str, int]) -> Structure:  # noqa: ARG002
        """The configuration of adapters put side by side, with these widths and folded fields at their defaults.

        Raises ValidationError where it is not valid, and Internal for structures that are not joinable.
        """
        raise Internal(f"Adapters of method {self.method!r} were to be put side by side.")

    def widened(self, factor: int) -> Self | None:  # noqa: ARG002
        """The configuration `factor` times as wide, None where it has no width; raises ValidationError if too wide."""
        return None

    # --- mixing and initialisation ------------------------------------------------------------------

    @property
    def is_update(self) -> bool:
        """Return True if it only changes the base model's matrices, so that several have an exact sum."""
        return self.joinable and self.edits_modules

    @property
    def no_average(self) -> str | None:
        """The reason why several cannot be averaged, as the predicate of a sentence about one; None if they can."""
        return None

    @property
    def average_on_request(self) -> bool:
        """Return True if `auto` does not average several, as averaged tensors are far from averaged updates."""
        return False

    @property
    def scaled_tensors(self) -> tuple[str, ...]:
        """Suffixes of the names of tensors that its output is proportional to: a `scale` multiplies them."""
        return ()

    @property
    def scalable(self) -> bool:
        """Return True if all that it adds within the base is proportional to its `scaled_tensors`."""
        return bool(self.scaled_tensors)

    @property
    def no_exact_mixture(self) -> str | None:
        """A sentence about why soups have no exact mixture to compare with; None if they have one."""
        return f"There is no exact mixture of {self.method} adapters to compare with, and no residual."

    def start_named(self, init: str) -> str:
        """The initialisation that is recorded where `init` was requested."""
        return init

    # --- pruning ------------------------------------------------------------------------------------

    def prunable(self) -> dict[str, Prunable]:
        """The configurations that can be pruned, itself or members of a union, by prefix."""
        return {}

    def prunings(self) -> dict[str, Pruned]:
        """The records of pruning by prefix; empty for a dense adapter."""
        return {prefix: config.pruned for prefix, config in self.prunable().items() if config.pruned is not None}

    def with_pruned(self, pruned: Mapping[str, Pruned]) -> Self:  # noqa: ARG002
        """The configuration with exactly these records of pruning, by prefix."""
        return self

    def dense(self) -> Self:
        """The configuration without masks: equal for adapters that differ only in their pruning."""
        return self.with_pruned({})


class Prunable(Structure):
    """A structure with projections whose entries can be fixed at zero.

    Subclasses declare `pruned` themselves, as their last field: schemas list fields in the order of declaration.
    """

    if TYPE_CHECKING:
        pruned: Pruned | None = None

    def prunable(self) -> dict[str, Prunable]:
        """The configuration itself."""
        return {"": self}

    def with_pruned(self, pruned: Mapping[str, Pruned]) -> Self:
        """The configuration with the record of pruning of the prefix `""`, or none."""
        return self.model_copy(update={"pruned": pruned.get("")})


# --- the head -------------------------------------------------------------------------------------

MAX_LABEL_CHARACTERS = 65_536
"""The most characters of all labels of a head, which listings of adapters contain."""
SHOWN_LABELS = 5
Label = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(without_nul)]


class HeadConfig(Structure):
    """A linear head on the base's last hidden states: what a task adapter answers with, and its label map.

    `classification` reads one position (the first of an encoder, the last of a causal model) and has one output per
    label. `question_answering` reads every position; its outputs are the scores of a span's `start` and `end`.
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
        """The head itself."""
        return self

    @property
    def purpose(self) -> str:
        """The task in words: `classification (labels 'no', 'yes')`."""
        if self.task == "question_answering":
            return "question answering"
        more = len(self.labels) - SHOWN_LABELS
        labels = ", ".join(map(repr, self.labels[:SHOWN_LABELS])) + (f" and {more} more" if more > 0 else "")
        return f"classification (labels {labels})"

    def format_field(self, field: str) -> object:
        """The number of labels and the first of them: `3 labels (no, yes, maybe)`."""
        if field != "labels":
            return super().format_field(field)
        return f"{len(self.labels)} labels ({', '.join(self.labels[:6])}{', ...' if len(self.labels) > 6 else ''})"
