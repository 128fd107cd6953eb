"""Unions: adapters of several methods combined into one."""

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
        """The fields that the adapter's digest includes, with those of the members."""
        return {"method": self.method, "members": [member.identity() for member in self.members]}

    @property
    def components(self) -> tuple[Structure, ...]:
        """The members."""
        return self.members

    @property
    def inner(self) -> tuple[str, tuple[Structure, ...]]:
        """The members."""
        return "members", self.members

    @property
    def head(self) -> HeadConfig | None:
        """The member that is a head."""
        return next((member.head for member in self.members if member.head is not None), None)

    @property
    def takes_head(self) -> bool:
        """Return True if it has no head yet."""
        return all(member.takes_head for member in self.members)

    @property
    def prefix_length(self) -> int:
        """The sum over the members."""
        return sum(member.prefix_length for member in self.members)

    @property
    def methods(self) -> str:
        """The methods of the members."""
        return " + ".join(member.method for member in self.members)

    @property
    def kind(self) -> str:
        """The kinds of the members."""
        return " + ".join(member.kind for member in self.members)

    @property
    def described(self) -> str:
        """The union with the members' methods."""
        return f"{self.method} of {self.methods}"

    @property
    def width(self) -> int:
        """The width of the widest member."""
        return max(member.width for member in self.members)

    @property
    def folded(self) -> frozenset[str]:
        """The foldable fields of the members."""
        return frozenset(field for member in self.members for field in member.foldable)

    def widened(self, factor: int) -> Self | None:
        """The union with the members widened that have a width; None where none has."""
        wide = [member.widened(factor) for member in self.members]
        if not any(wide):
            return None
        members = tuple(wide_member or member for wide_member, member in zip(wide, self.members, strict=True))
        return self.model_copy(update={"members": members})

    @property
    def average_on_request(self) -> bool:
        """Return True if a member is only averaged on request."""
        return any(member.average_on_request for member in self.members)

    @property
    def scalable(self) -> bool:
        """Return True if all members but the head are scalable."""
        return all(member.scalable or member.head is not None for member in self.members)

    @property
    def scaled_tensors(self) -> tuple[str, ...]:
        """The suffixes of the members."""
        return tuple(suffix for member in self.members for suffix in member.scaled_tensors)

    @property
    def no_exact_mixture(self) -> str | None:
        """The sentence of the first member that has no exact mixture."""
        return next((member.no_exact_mixture for member in self.members if member.no_exact_mixture is not None), None)

    def start_named(self, init: str) -> str:
        """The initialisation of the first member with projections; `init` where a member or none has that."""
        starts = [member.start_named(init) for member in self.members if member.projections]
        return starts[0] if starts and init not in starts else init

    def prunable(self) -> dict[str, Prunable]:
        """The members that can be pruned, by prefix."""
        return {f"{member.method}.": config for member in self.members for config in member.prunable().values()}

    def with_pruned(self, pruned: Mapping[str, Pruned]) -> Self:
        """The union with exactly these records of pruning, by prefix."""
        members = []
        for member in self.members:
            record = pruned.get(f"{member.method}.")
            members.append(member.with_pruned({} if record is None else {"": record}))
        return self.model_copy(update={"members": tuple(members)})
