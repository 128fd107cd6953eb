"""AdapterFusion: attention over frozen bottleneck adapters."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from registry.spec.structures.bottleneck import BottleneckConfig
from registry.spec.structures.pruned import Pruned
from registry.spec.structures.structure import SOFTMAX, Prunable, Structure


class FusionConfig(Prunable):
    """AdapterFusion (Pfeiffer et al., EACL 2021): attention over the outputs of frozen adapters of one structure.

    The frozen adapters are part of it, so that it needs nothing else; `pruned` is of the attention's matrices.
    """

    method: Literal["fusion"] = "fusion"
    member: BottleneckConfig
    members: int = Field(ge=2, le=64)
    pruned: Pruned | None = None

    projections: ClassVar[tuple[str, ...]] = ("query", "key", "value")
    takes_head: ClassVar[bool] = False
    no_average: ClassVar[str | None] = "is a fusion, whose attention was trained over members of its own"
    no_exact_mixture: ClassVar[str | None] = SOFTMAX

    @model_validator(mode="after")
    def _one_site(self) -> Self:
        if self.member.structure == "houlsby":
            raise ValueError("members of structure 'houlsby' act at two places of a layer, and a fusion at one")
        if self.member.pruned is not None:
            raise ValueError("the members of a fusion are frozen, zeros and all: 'member' says nothing of pruning")
        return self

    @staticmethod
    def member_of(config: Structure) -> BottleneckConfig | None:
        """The configuration if it can be a member of a fusion, else None."""
        return config if isinstance(config, BottleneckConfig) else None  # `member` is of this type in every schema

    def identity(self) -> dict[str, Any]:
        """The fields that the adapter's digest includes, with those of the members."""
        return {**super().identity(), "member": self.member.identity()}

    @property
    def inner(self) -> tuple[str, tuple[Structure, ...]]:
        """The configuration of each member."""
        return "member", (self.member,)

    @property
    def width(self) -> int:
        """The width of a member."""
        return self.member.width

    @property
    def folded(self) -> frozenset[str]:
        """The foldable fields of the members."""
        return self.member.foldable
