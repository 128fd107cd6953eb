"""LoRA: low-rank updates of linear modules, by the modules' paths."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from registry.spec.frozen import Frozen
from registry.spec.structures.pruned import Pruned
from registry.spec.structures.structure import Prunable

MAX_LORA_MODULES = 65_536
MAX_TARGETS = 256
MAX_GROUPS = 4096
LAYER = "*"
"""The placeholder of the layer's number in the path of a LoRA target."""
ModulePath = Annotated[
    str, StringConstraints(pattern=r"^(?:[A-Za-z0-9_]+|\*)(?:\.(?:[A-Za-z0-9_]+|\*))*$", max_length=200)
]


class LoraModule(NamedTuple):
    """Rank and alpha of the LoRA on one module."""

    rank: int
    alpha: float


class LoraGroup(Frozen):
    """Modules with the same rank and alpha: each of `targets` in each of `layers`.

    A target is a module's path with `*` for the layer's number (`transformer.h.*.attn.c_attn`); targets without one
    are outside of the layers, and `layers` is then empty.
    """

    targets: tuple[ModulePath, ...] = Field(min_length=1, max_length=MAX_TARGETS, fail_fast=True)
    layers: tuple[Annotated[int, Field(ge=0, le=9999)], ...] = Field(default=(), max_length=2048, fail_fast=True)
    rank: int = Field(ge=1, le=65536)
    alpha: float = Field(gt=0, le=1e9)

    @model_validator(mode="after")
    def _layers_where_there_is_a_star(self) -> Self:
        for target in self.targets:
            if target.split(".").count(LAYER) != (1 if self.layers else 0):
                raise ValueError(f"target {target!r} needs one '*' for the numbers in 'layers', and none without them")
        return self

    def paths(self) -> Iterator[str]:
        """The paths of the group's modules."""
        for target in self.targets:
            if self.layers:
                yield from (target.replace(LAYER, str(layer)) for layer in self.layers)
            else:
                yield target


class LoraConfig(Prunable):
    """Structure of a LoRA (Hu et al., ICLR 2022), as PEFT means it: W x + s B A x, s = alpha / rank.

    With `rslora` s = alpha / sqrt(rank) (Kalajdzievski, 2023). The groups are stored in canonical form, so that equal
    structures are equal values.
    """

    method: Literal["lora"] = "lora"
    rslora: bool = False
    groups: tuple[LoraGroup, ...] = Field(min_length=1, max_length=MAX_GROUPS, fail_fast=True)
    pruned: Pruned | None = None

    projections: ClassVar[tuple[str, ...]] = ("lora_A", "lora_B")
    scaled_tensors: ClassVar[tuple[str, ...]] = (".lora_B.weight",)
    no_exact_mixture: ClassVar[str | None] = None
    average_on_request: ClassVar[bool] = True  # the product of averaged factors has cross terms
    edits_modules: ClassVar[bool] = True
    joinable: ClassVar[bool] = True
    foldable: ClassVar[frozenset[str]] = frozenset({"groups", "rslora", "pruned"})
    field_names: ClassVar[Mapping[str, str]] = {"groups": "The LoRAs' modules and ranks"}

    @field_validator("groups")
    @classmethod
    def _canonical(cls, groups: tuple[LoraGroup, ...]) -> tuple[LoraGroup, ...]:
        total = sum(len(group.targets) * max(1, len(group.layers)) for group in groups)
        if total > MAX_LORA_MODULES:
            raise ValueError(f"the groups name {total} modules, and at most {MAX_LORA_MODULES} can be")
        modules: dict[str, LoraModule] = {}
        for group in groups:
            for path in group.paths():
                if path in modules:
                    raise ValueError(f"module {path!r} is in two groups")
                modules[path] = LoraModule(group.rank, group.alpha)
        canonical = _grouped(modules)
        if len(canonical) > MAX_GROUPS:  # what is stored has to be readable again
            raise ValueError(f"the modules are {len(canonical)} groups of like rank and layers; {MAX_GROUPS} can be")
        return canonical

    @classmethod
    def of(cls, modules: Mapping[str, LoraModule], *, rslora: bool = False) -> Self:
        """The configuration of modules by path."""
        return cls(rslora=rslora, groups=_grouped(modules))

    def modules(self) -> dict[str, LoraModule]:
        """Rank and alpha of each module by path, sorted by path."""
        modules = {path: LoraModule(group.rank, group.alpha) for group in self.groups for path in group.paths()}
        return dict(sorted(modules.items()))

    def scaling(self, module: LoraModule) -> float:
        """The factor of the product B A of a module."""
        return module.alpha / (math.sqrt(module.rank) if self.rslora else module.rank)

    def format_field(self, field: str) -> object:
        """The groups by their modules: `24 modules (c_attn, c_proj) of rank 8 and alpha 16`."""
        if field != "groups":
            return super().format_field(field)
        modules = self.modules()
        names = sorted({path.rpartition(".")[2] for path in modules})
        listed = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        ranks = _span({module.rank for module in modules.values()})
        alphas = _span({module.alpha for module in modules.values()})
        return f"{len(modules)} modules ({listed}) of rank {ranks} and alpha {alphas}"

    def start_named(self, init: str) -> str:
        """`small_b` if requested, else `zero_b`."""
        return init if init == "small_b" else "zero_b"

    def widths(self) -> dict[str, int]:
        """The rank of each module by path."""
        return {path: module.rank for path, module in self.modules().items()}

    def joined(self, widths: Mapping[str, int]) -> LoraConfig:
        """The LoRA of these ranks by module, with alpha = rank, as scalings are folded into the tensors."""
        return type(self).of({path: LoraModule(rank, float(rank)) for path, rank in widths.items()})

    def widened(self, factor: int) -> Self:
        """The LoRA with ranks `factor` times as large, and alpha grown so that the scaling stays."""
        growth = math.sqrt(factor) if self.rslora else float(factor)
        modules = self.modules().items()
        wide = {path: LoraModule(module.rank * factor, module.alpha * growth) for path, module in modules}
        return type(self).of(wide, rslora=self.rslora)


def _span(values: Collection[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _grouped(modules: Mapping[str, LoraModule]) -> tuple[LoraGroup, ...]:
    """The fewest groups of modules with the same rank, alpha and layers, in a fixed order."""
    layers: dict[tuple[str, LoraModule], list[int]] = {}
    for path, module in modules.items():
        names = path.split(".")
        index = next((i for i, name in enumerate(names) if name.isascii() and name.isdigit()), None)
        target = path if index is None else ".".join([*names[:index], LAYER, *names[index + 1 :]])
        layers.setdefault((target, module), []).extend(() if index is None else [int(names[index])])
    targets: dict[tuple[LoraModule, tuple[int, ...]], list[str]] = {}
    for (target, module), numbers in layers.items():
        targets.setdefault((module, tuple(sorted(numbers))), []).append(target)
    groups = [
        LoraGroup(
            targets=sorted(paths)[start : start + MAX_TARGETS], layers=layers, rank=module.rank, alpha=module.alpha
        )
        for (module, layers), paths in targets.items()
        for start in range(0, len(paths), MAX_TARGETS)
    ]
    return tuple(sorted(groups, key=lambda group: (group.targets, group.layers)))
