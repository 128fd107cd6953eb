"""Adapters of several methods as one: MAM is prefix + parallel (He et al., ICLR 2022), a task adapter any + head.

Each member is the adapter it is alone, with the same tensors below its method's name (`prefix.prompt_embeddings`,
`head.out.weight`). They act together, each where it acts alone; of two at one module the LoRA is first, because it
changes the module itself. Knows no list of methods: its maker hands it the members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit, InputEdit
from registry.errors import Incompatible, more_problems
from registry.spec import UnionConfig


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

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """The edits of every member, a LoRA's first."""
        for member in sorted(self._members, key=lambda one: one.config.method != "lora"):
            yield from member.edits(model)

    def inputs(self, model: nn.Module) -> Iterator[tuple[nn.Module, InputEdit]]:
        """The edits of what modules are given, of every member."""
        for member in self._members:
            yield from member.inputs(model)


def by_member(tensors: Mapping[str, object]) -> dict[str, list[str]]:
    """Names of a union's tensors by the method of the member they belong to, the method's name taken off."""
    found: dict[str, list[str]] = {}
    for name in tensors:
        method, _, own = name.partition(".")
        found.setdefault(method, []).append(own)
    return found


def initial_union(
    shapes: Mapping[str, tuple[int, ...]], initial: Mapping[str, Callable[..., dict[str, Tensor]]], **start: object
) -> dict[str, Tensor]:
    """fp32 tensors for `shapes`: each member starts as it starts alone, by its method's `initial`.

    Raises what those raise.
    """
    tensors: dict[str, Tensor] = {}
    for method, names in by_member(shapes).items():
        own = {name: shapes[f"{method}.{name}"] for name in names}
        tensors |= {f"{method}.{name}": tensor for name, tensor in initial[method](own, **start).items()}
    return tensors
