"""Unions: adapters of several methods as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator

from registry.spec.structures.bottleneck import BottleneckConfig
from registry.spec.structures.lora import LoraConfig
from registry.spec.structures.prefix import PrefixConfig
from registry.spec.structures.pruned import Pruned
from registry.spec.structures.structure import HeadConfig, Prunable, Structure

Member = Annotated[BottleneckConfig | LoraConfig | PrefixConfig | HeadConfig, Field(discriminator="method")]


class UnionConfig(Structure):
    """Several adapters of different methods as one: MAM is prefix + parallel (He et al., ICLR 2022), a task adapter
    any of them + head. Kept in the order of the methods' names."""

    method: Literal["union"] = "union"
    members: tuple[Member, ...] = Field(min_length=2, max_length=4, fail_fast=True)

    @field_validator("members")
    @classmethod
    def _canonical(cls, members: tuple[Member, ...]) -> tuple[Member, ...]:
        methods = [member.method for member in members]
        if len(set(methods)) < len(methods):
            raise ValueError("the members of a union are of different methods")
        return tuple(sorted(members, key=lambda member: member.method))

    def identity(self) -> dict[str, Any]:
        """Those of its members, in their order."""
        return {"method": self.method, "members": [member.identity() for member in self.members]}

    @property
    def parts(self) -> tuple[Structure, ...]:
        """The members."""
        return self.members

    @property
    def inner(self) -> tuple[str, tuple[Structure, ...]]:
        """The members."""
        return "members", self.members

    @property
    def head(self) -> HeadConfig | None:
        """The member that is one."""
        return next((member.head for member in self.members if member.head is not None), None)

    @property
    def takes_head(self) -> bool:
        """Whether it has none yet."""
        return all(member.takes_head for member in self.members)

    @property
    def prefix_length(self) -> int:
        """The sum of its members'."""
        return sum(member.prefix_length for member in self.members)

    @property
    def methods(self) -> str:
        """Those of its members."""
        return " + ".join(member.method for member in self.members)

    @property
    def kind(self) -> str:
        """The kinds of its members."""
        return " + ".join(member.kind for member in self.members)

    @property
    def described(self) -> str:
        """A union of its members' methods."""
        return f"{self.method} of {self.methods}"

    @property
    def width(self) -> int:
        """That of its widest member."""
        return max(member.width for member in self.members)

    @property
    def folded(self) -> frozenset[str]:
        """What its members could fold, were they alone."""
        return frozenset(field for member in self.members for field in member.foldable)

    def widened(self, factor: int) -> Self | None:
        """With the members widened that have a width."""
        wide = [member.widened(factor) for member in self.members]
        if not any(wide):
            return None
        members = tuple(found or member for found, member in zip(wide, self.members, strict=True))
        return self.model_copy(update={"members": members})

    @property
    def average_on_request(self) -> bool:
        """Whether a member's average is."""
        return any(member.average_on_request for member in self.members)

    @property
    def scalable(self) -> bool:
        """Whether its members are; a head adds nothing inside of the base."""
        return all(member.scalable or member.head is not None for member in self.members)

    @property
    def scaled_tensors(self) -> tuple[str, ...]:
        """Those of its members."""
        return tuple(ending for member in self.members for ending in member.scaled_tensors)

    @property
    def no_exact_mixture(self) -> str | None:
        """The sentence of a member that has none."""
        return next((member.no_exact_mixture for member in self.members if member.no_exact_mixture is not None), None)

    def start_named(self, init: str) -> str:
        """That of the member with projections to draw; of several the one that starts as it was asked for."""
        started = [member.start_named(init) for member in self.members if member.projections]
        return started[0] if started and init not in started else init

    def prunable(self) -> dict[str, Prunable]:
        """The members that can be."""
        return {f"{member.method}.": one for member in self.members for one in member.prunable().values()}

    def with_pruned(self, pruned: Mapping[str, Pruned]) -> Self:
        """With exactly these members pruned."""
        own = [(member, pruned.get(f"{member.method}.")) for member in self.members]
        members = tuple(member.with_pruned({} if found is None else {"": found}) for member, found in own)
        return self.model_copy(update={"members": members})
