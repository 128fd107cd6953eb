"""Structures of adapters: a union by `method`, each member the whole configuration of one kind of adapter.

What is in `identity()` is in the adapter's digest. Tensors, their names and shapes are `registry.adapters`' affair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from registry.names import Digest
from registry.spec.frozen import Frozen, without_nul

PruningScore = Literal["random", "magnitude", "erdos_renyi", "snip", "grasp"]
MaskRule = Literal["union", "intersect", "first", "reprune"]


class Pruned(Frozen):
    """That entries of an adapter's projections are held at zero, and how they were chosen (SparseAdapter, section 2).

    `sparsity` is the share that is pruned. Of a trained adapter `score` says by what, `scope` whether entries
    were ranked over all projections or within each, `data` which text gave the gradients; of a soup `score` is the
    rule that made one mask of its ingredients'.
    """

    score: PruningScore | MaskRule
    sparsity: float = Field(gt=0, lt=1)
    scope: Literal["global", "layer"] = "global"
    seed: int = Field(default=0, ge=0, lt=2**63)
    masked: int = Field(ge=1, lt=2**48)
    """How many entries are pruned, exactly."""
    data: Digest | None = None


def without_none(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """`values` without those of `names` that are None: fields that came later leave earlier digests as they were."""
    return {name: value for name, value in values.items() if value is not None or name not in names}


class BottleneckConfig(Frozen):
    """Structure of a bottleneck adapter: where it sits, how wide it is, and what it computes.

    `scale` multiplies the up-projection's output. With `input="residual"` the adapter reads the residual stream:
    Bapna-Firat and Pfeiffer after the block's residual add (which makes them act on the block's output), parallel
    before the norm of the feed-forward module. `trained_norms=False` is a Houlsby adapter that leaves the base's
    norms alone, as AdapterHub's do.
    """

    method: Literal["bottleneck"] = "bottleneck"
    structure: Literal["houlsby", "pfeiffer", "bapna_firat", "parallel"]
    bottleneck: int = Field(ge=1, le=65536)
    activation: Literal["relu", "gelu", "swish"]
    scale: float = 1.0
    input: Literal["module", "residual"] = "module"
    layer_norm_eps: float = Field(default=1e-5, gt=0, lt=1)
    trained_norms: bool = True
    pruned: Pruned | None = None

    @model_validator(mode="after")
    def _options_fit_the_structure(self) -> Self:
        if self.input == "residual" and self.structure == "houlsby":
            raise ValueError("input='residual' is no option of structure 'houlsby', which acts before both adds")
        if not self.trained_norms and self.structure != "houlsby":
            raise ValueError("trained_norms is an option of structure 'houlsby' only: no other trains norms")
        return self

    def identity(self) -> dict[str, Any]:
        """What of the configuration is in the adapter's digest.

        A field that came later is in it only where it is not its default, so that digests stay what they were.
        """
        values = self.model_dump(mode="json")
        if self.trained_norms:
            del values["trained_norms"]
        return without_none(values, "pruned")


MAX_LORA_MODULES = 65_536
MAX_TARGETS = 256
MAX_GROUPS = 4096
LAYER = "*"
"""Stands for the layer's number in the path of a LoRA target."""
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


class LoraConfig(Frozen):
    """Structure of a LoRA (Hu et al., ICLR 2022), as PEFT means it: W x + s B A x, s = alpha / rank.

    With `rslora` s = alpha / sqrt(rank) (Kalajdzievski, 2023). The groups are kept in canonical form, so that equal
    structures are equal values however they were written.
    """

    method: Literal["lora"] = "lora"
    rslora: bool = False
    groups: tuple[LoraGroup, ...] = Field(min_length=1, max_length=MAX_GROUPS, fail_fast=True)
    pruned: Pruned | None = None

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
    def of(cls, modules: Mapping[str, LoraModule], *, rslora: bool = False) -> LoraConfig:
        """The configuration of these modules by path."""
        return cls(rslora=rslora, groups=_grouped(modules))

    def modules(self) -> dict[str, LoraModule]:
        """Rank and alpha of every module by its path, in the order of the paths."""
        found = {path: LoraModule(group.rank, group.alpha) for group in self.groups for path in group.paths()}
        return {path: found[path] for path in sorted(found)}

    def scaling(self, module: LoraModule) -> float:
        """What the product B A of a module is multiplied with."""
        return module.alpha / (math.sqrt(module.rank) if self.rslora else module.rank)

    def identity(self) -> dict[str, Any]:
        """What of the configuration is in the adapter's digest."""
        return without_none(self.model_dump(mode="json"), "pruned")


def _grouped(modules: Mapping[str, LoraModule]) -> tuple[LoraGroup, ...]:
    """The fewest groups of modules with the same rank, alpha and layers, in a fixed order."""
    layers: dict[tuple[str, LoraModule], list[int]] = {}
    for path, module in modules.items():
        parts = path.split(".")
        number = next((i for i, part in enumerate(parts) if part.isascii() and part.isdigit()), None)
        target = path if number is None else ".".join([*parts[:number], LAYER, *parts[number + 1 :]])
        layers.setdefault((target, module), []).extend(() if number is None else [int(parts[number])])
    targets: dict[tuple[LoraModule, tuple[int, ...]], list[str]] = {}
    for (target, module), numbers in layers.items():
        targets.setdefault((module, tuple(sorted(numbers))), []).append(target)
    groups = [
        LoraGroup(targets=names[start : start + MAX_TARGETS], layers=numbers, rank=module.rank, alpha=module.alpha)
        for (module, numbers), found in targets.items()
        for names in [tuple(sorted(found))]
        for start in range(0, len(names), MAX_TARGETS)
    ]
    return tuple(sorted(groups, key=lambda group: (group.targets, group.layers)))


class PrefixConfig(Frozen):
    """Prefix tuning (Li & Liang, ACL 2021): keys and values of `length` virtual tokens before every text.

    They are stored as PEFT's `prompt_embeddings`, layer by layer, keys before values.
    """

    method: Literal["prefix"] = "prefix"
    length: int = Field(ge=1, le=4096)

    def identity(self) -> dict[str, Any]:
        """What of the configuration is in the adapter's digest."""
        return self.model_dump(mode="json")


MAX_LABEL_CHARACTERS = 65_536
"""Of all labels of a head: whoever lists adapters is sent them with every one."""
Label = Annotated[str, StringConstraints(min_length=1, max_length=200), AfterValidator(without_nul)]


class HeadConfig(Frozen):
    """A linear head on the base's last hidden states: what a task adapter answers with, and its label map.

    `classification` reads one position (the first of an encoder, the last of a causal model) and has an output a
    label; `question_answering` reads every position, its outputs being the scores of a span's `start` and `end`.
    """

    method: Literal["head"] = "head"
    task: Literal["classification", "question_answering"]
    labels: tuple[Label, ...] = Field(min_length=2, max_length=4096, fail_fast=True)

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

    def identity(self) -> dict[str, Any]:
        """What of the configuration is in the adapter's digest."""
        return self.model_dump(mode="json")


Member = Annotated[BottleneckConfig | LoraConfig | PrefixConfig | HeadConfig, Field(discriminator="method")]


class UnionConfig(Frozen):
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

    @property
    def head(self) -> HeadConfig | None:
        """The union's head, None for one that models language."""
        return next((member for member in self.members if isinstance(member, HeadConfig)), None)

    def identity(self) -> dict[str, Any]:
        """What of the configuration is in the adapter's digest."""
        return {"method": self.method, "members": [member.identity() for member in self.members]}


class FusionConfig(Frozen):
    """AdapterFusion (Pfeiffer et al., EACL 2021): attention over the outputs of frozen adapters of one structure.

    The frozen adapters are part of it, so that it needs nothing else; `pruned` is of the attention's matrices.
    """

    method: Literal["fusion"] = "fusion"
    member: BottleneckConfig
    members: int = Field(ge=2, le=64)
    pruned: Pruned | None = None

    @model_validator(mode="after")
    def _one_site(self) -> Self:
        if self.member.structure == "houlsby":
            raise ValueError("members of structure 'houlsby' act at two places of a layer, and a fusion at one")
        if self.member.pruned is not None:
            raise ValueError("the members of a fusion are frozen, zeros and all: 'member' says nothing of pruning")
        return self

    def identity(self) -> dict[str, Any]:
        """What of the configuration is in the adapter's digest."""
        values = {**self.model_dump(mode="json"), "member": self.member.identity()}
        return without_none(values, "pruned")


class BankConfig(Frozen):
    """A bank of AdaMix (Wang et al., EMNLP 2022): `experts` copies of each projection of `expert`.

    Of the projections that `share` names (up: LoRA's B; down: A) there is one copy, as of the head that an expert may
    have for a task. Trained by random routing; what is served is its merge, the mean of the experts.
    """

    method: Literal["adamix"] = "adamix"
    expert: Annotated[BottleneckConfig | LoraConfig | UnionConfig, Field(discriminator="method")]
    experts: int = Field(default=4, ge=2, le=64)
    share: Literal["up", "down", "none"] = "up"

    @model_validator(mode="after")
    def _experts_can_be_copied(self) -> Self:
        members = self.expert.members if isinstance(self.expert, UnionConfig) else (self.expert,)
        copied = [member for member in members if isinstance(member, BottleneckConfig | LoraConfig)]
        heads = [member for member in members if isinstance(member, HeadConfig)]
        if len(copied) != 1 or len(copied) + len(heads) < len(members):
            raise ValueError("the experts of a bank are bottlenecks or LoRAs, with or without a head")
        if copied[0].pruned is not None:
            raise ValueError("the experts of a bank are not pruned")
        return self

    def identity(self) -> dict[str, Any]:
        """What of the configuration is in the adapter's digest."""
        return {**self.model_dump(mode="json"), "expert": self.expert.identity()}


AdapterConfig = Annotated[
    BottleneckConfig | LoraConfig | PrefixConfig | HeadConfig | UnionConfig | FusionConfig | BankConfig,
    Field(discriminator="method"),
]


def head_of(config: AdapterConfig) -> HeadConfig | None:
    """The head that an adapter answers with; None for one that changes what the base model says."""
    if isinstance(config, BankConfig):
        return head_of(config.expert)
    if isinstance(config, UnionConfig):
        return config.head
    return config if isinstance(config, HeadConfig) else None


def prefix_length(config: AdapterConfig) -> int:
    """How many positions of the context an adapter takes before every text."""
    members = config.members if isinstance(config, UnionConfig) else (config,)
    return sum(member.length for member in members if isinstance(member, PrefixConfig))


def is_language_model(config: AdapterConfig) -> bool:
    """Whether a causal base model with such an adapter is one: it has no head, and is no bank, whose merge is."""
    return head_of(config) is None and not isinstance(config, BankConfig)
