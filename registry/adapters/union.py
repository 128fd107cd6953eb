"""Adapters of several methods as one: MAM is prefix + parallel (He et al., ICLR 2022), a task adapter any + head.

Each member has the same tensors as alone, with its method's name as prefix (`prefix.prompt_embeddings`,
`head.out.weight`), and acts at the same modules. Of two at one module the LoRA is first, because it changes the module
itself. Knows no list of structures: its maker hands it the members.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit, InputEdit
from registry.adapters.initial import Shapes
from registry.adapters.loadable import Tensors
from registry.adapters.mixture import Factor, Mixture
from registry.spec import AdapterConfig, UnionConfig

T = TypeVar("T")


class UnionAdapter(AdapterModule):
    """The members' modules by their methods."""

    config: UnionConfig

    def __init__(self, config: UnionConfig, members: Sequence[AdapterModule]) -> None:
        super().__init__()
        self.config = config
        self._members = tuple(members)
        for member in members:
            self.add_module(member.config.method, member)

    def stackable(self) -> AdapterModule | None:
        """The union of the members' stackable forms, without a prefix, which edits nothing; None where one has none."""
        editing = [member for member in self._members if member.prefix_states() is None]
        forms = [form for form in (member.stackable() for member in editing) if form is not None]
        return UnionAdapter(self.config, forms) if forms and len(forms) == len(editing) else None

    def settings(self) -> Hashable:
        """The settings of the members, by their methods."""
        return tuple((member.config.method, member.settings()) for member in self._members)

    def prefix_states(self) -> Tensor | None:
        """The prefix of the member that has one, or None."""
        prefixes = (member.prefix_states() for member in self._members)
        return next((states for states in prefixes if states is not None), None)

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """The edits of every member, a LoRA's first."""
        for member in sorted(self._members, key=lambda member: not member.config.edits_modules):
            yield from member.edits(model)

    def inputs(self, model: nn.Module) -> Iterator[tuple[nn.Module, InputEdit]]:
        """The input edits of every member."""
        for member in self._members:
            yield from member.inputs(model)


def initial_union(
    config: UnionConfig, shapes: Shapes, *, initial: Callable[..., dict[str, Tensor]], **start: object
) -> dict[str, Tensor]:
    """fp32 tensors for `shapes`: each member starts as alone, drawn by `initial`; raises what that does."""
    tensors: dict[str, Tensor] = {}
    for member in config.members:
        drawn = initial(member, of_member(shapes, member), **start)
        tensors |= {f"{member.method}.{name}": tensor for name, tensor in drawn.items()}
    return tensors


class UnionMixture(Mixture):
    """The exact mixtures of the members; the residual is the largest of theirs, or None where one has none."""

    def __init__(self, mixtures: Mapping[str, Mixture]) -> None:
        self._mixtures = mixtures

    def add(self, config: UnionConfig, tensors: Tensors, factor: Factor) -> None:
        """Add each member's tensors to its mixture."""
        for member in config.members:
            self._mixtures[member.method].add(member, of_member(tensors, member), factor)

    def residual(self, config: UnionConfig, tensors: Tensors) -> float | None:
        """The largest residual of the members; None where one has none."""
        residuals = [
            self._mixtures[member.method].residual(member, of_member(tensors, member)) for member in config.members
        ]
        present = [residual for residual in residuals if residual is not None]
        return max(present) if len(present) == len(residuals) else None


def of_member(values: Mapping[str, T], member: AdapterConfig) -> dict[str, T]:
    """A member's entries of a union's values by tensor name, by the member's own names."""
    prefix = f"{member.method}."
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
