"""Adapters of several methods as one: MAM is prefix + parallel (He et al., ICLR 2022), a task adapter any + head.

Each member is the adapter it is alone, with the same tensors below its method's name (`prefix.prompt_embeddings`,
`head.out.weight`). They act together, each where it acts alone; of two at one module the LoRA is first, because it
changes the module itself. Knows no list of structures: its maker hands it the members.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit, InputEdit
from registry.adapters.initial import Shapes
from registry.adapters.loadable import Tensors
from registry.adapters.mixture import Factor, Mixture
from registry.errors import Incompatible, more_problems
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

    def check_fit(self, model: nn.Module) -> None:
        """Raises Incompatible with the reasons of every member that cannot be put on `model`."""
        problems: list[str] = []
        for member in self._members:
            try:
                member.check_fit(model)
            except Incompatible as refused:
                problems += refused.problems or [refused.message]
        if problems:
            raise Incompatible(
                f"The union does not fit this base model: {problems[0].rstrip('.')}{more_problems(len(problems))}.",
                param="base_model",
                problems=problems,
            )

    def stackable(self) -> AdapterModule | None:
        """The union of the members' forms, without a prefix, which edits nothing; None where one has none."""
        editing = [member for member in self._members if member.states_before() is None]
        forms = [form for form in (member.stackable() for member in editing) if form is not None]
        return UnionAdapter(self.config, forms) if forms and len(forms) == len(editing) else None

    def settings(self) -> Hashable:
        """Those of the members, by their methods."""
        return tuple((member.config.method, member.settings()) for member in self._members)

    def states_before(self) -> Tensor | None:
        """Those of the member that has some."""
        return next((found for one in self._members if (found := one.states_before()) is not None), None)

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """The edits of every member, a LoRA's first."""
        for member in sorted(self._members, key=lambda one: not one.config.edits_modules):
            yield from member.edits(model)

    def inputs(self, model: nn.Module) -> Iterator[tuple[nn.Module, InputEdit]]:
        """The edits of what modules are given, of every member."""
        for member in self._members:
            yield from member.inputs(model)


def initial_union(
    config: UnionConfig, shapes: Shapes, *, initial: Callable[..., dict[str, Tensor]], **start: object
) -> dict[str, Tensor]:
    """fp32 tensors for `shapes`: each member starts as it does alone, drawn by `initial`; raises what that does."""
    tensors: dict[str, Tensor] = {}
    for member in config.members:
        own = of_member(shapes, member)
        tensors |= {f"{member.method}.{name}": one for name, one in initial(member, own, **start).items()}
    return tensors


class UnionMixture(Mixture):
    """The exact mixture of every member by itself, of which the largest error counts; none where a member has none."""

    def __init__(self, mixtures: Mapping[str, Mixture]) -> None:
        self._of = mixtures

    def add(self, config: UnionConfig, tensors: Tensors, factor: Factor) -> None:
        """Hand each member's tensors to its own mixture."""
        for member in config.members:
            self._of[member.method].add(member, of_member(tensors, member), factor)

    def residual(self, config: UnionConfig, tensors: Tensors) -> float | None:
        """The largest of the members'."""
        found = [self._of[one.method].residual(one, of_member(tensors, one)) for one in config.members]
        known = [one for one in found if one is not None]
        return max(known) if len(known) == len(found) else None


def of_member(values: Mapping[str, T], member: AdapterConfig) -> dict[str, T]:
    """What of a union's values by the names of tensors is a member's, by its own names."""
    prefix = f"{member.method}."
    return {name.removeprefix(prefix): one for name, one in values.items() if name.startswith(prefix)}
