"""Base models, adapters, samples and the manifest that pushes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from registry.names import Digest, Part
from registry.spec.frozen import Frozen


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("must not hold the character NUL")  # PostgreSQL stores none
    return text


Words = Annotated[str, AfterValidator(_without_nul)]
Unit = Literal["passage", "sentence"]
InitSource = Literal["trained_here", "declared", "unknown"]


class BaseEntry(Frozen):
    """One entry of the operator's allowlist (`SOUP_BASES`): id -> source, revision, dtype, device, bos."""

    id: Part
    source: str
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    bos: bool = True


class BaseShape(Frozen):
    """What adapters need to know of a base model to be checked against it without loading it."""

    fingerprint: Digest
    model_type: str
    hidden_size: int
    num_layers: int
    context: int
    vocab_size: int
    linears: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """(inputs, outputs) of every linear module by its path (`transformer.h.0.attn.c_attn`): what LoRA can sit on."""


class BottleneckConfig(Frozen):
    """Structure of a bottleneck adapter (METHODS section 2).

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
        return values


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
        return self.model_dump(mode="json")


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


AdapterConfig = Annotated[BottleneckConfig | LoraConfig, Field(discriminator="method")]


class Card(Frozen):
    """What people say about an adapter; never part of its digest."""

    description: Words = Field(default="", max_length=20_000)
    license: Words | None = Field(default=None, max_length=200)
    tags: tuple[Part, ...] = Field(default=(), max_length=64, fail_fast=True)
    metadata: dict[Words, Words | int | float | bool | None] = Field(default_factory=dict, max_length=64)


class FileSource(Frozen):
    """A file of a manifest: the digest of an uploaded blob, or its bytes inline as base64."""

    digest: Digest | None = None
    base64: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.digest is None) == (self.base64 is None):
            raise ValueError("give either 'digest' (an uploaded blob) or 'base64' (the bytes)")
        return self


class EmbeddingSource(Frozen):
    """Embeddings computed by the client: a safetensors file with one tensor `embeddings` (units, dimensions)."""

    encoder: Digest
    unit: Unit
    file: FileSource


class SampleSource(Frozen):
    """A sample as sent: texts, an uploaded JSON-lines blob of {"text"}, or embeddings."""

    texts: tuple[str, ...] | None = Field(default=None, fail_fast=True)
    blob: Digest | None = None
    embeddings: tuple[EmbeddingSource, ...] | None = Field(default=None, max_length=16, fail_fast=True)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(part is not None for part in (self.texts, self.blob, self.embeddings)) != 1:
            raise ValueError("give exactly one of 'texts', 'blob' and 'embeddings'")
        return self


class SampleReport(Frozen):
    """What became of a sample: everything dropped, drawn or cut is counted here."""

    digest: Digest
    received: int
    empty: int = 0
    duplicates: int = 0
    kept: int
    seed: int | None = None
    """The seed of the draw when more than the limit came, else null."""
    has_text: bool = True
    truncated: dict[str, int] = Field(default_factory=dict)
    """Units cut at the encoder's length limit, by encoder."""
    notes: tuple[str, ...] = ()


class Provenance(Frozen):
    """How an adapter came to be; free beyond the initialisation, whose hash decides what may be averaged."""

    init_hash: Digest | None = None
    init_source: InitSource = "unknown"
    init_seed: int | None = None
    training: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _hash_and_source_agree(self) -> Self:
        if (self.init_source == "unknown") != (self.init_hash is None):
            raise ValueError("init_hash goes with init_source 'trained_here' or 'declared', and 'unknown' with none")
        return self


class Manifest(Frozen):
    """`POST /v1/adapters`: what is pushed under which name. `files` holds `adapter_model.safetensors`.

    Exactly one of `config` and `peft_config` says what the adapter is.
    """

    name: str = Field(max_length=129)
    domain: Words = Field(min_length=1, max_length=200)
    base_model: str | None = Field(default=None, max_length=64)
    base_fingerprint: Digest | None = None
    recorded_base: Words | None = Field(default=None, max_length=1000)
    """The base model as a file of the adapter names it: a hub repository or a folder of wherever it was trained.

    It stands for the one base model here with this id or source, where neither of the two above says which. Without
    it, the name that `peft_config` records is taken.
    """
    config: AdapterConfig | None = None
    peft_config: dict[str, Any] | None = None
    """PEFT's `adapter_config.json` of a LoRA as it is."""
    files: dict[str, FileSource]
    sample: SampleSource | None = None
    card: Card = Card()
    provenance: Provenance = Provenance()

    @model_validator(mode="after")
    def _one_configuration(self) -> Self:
        if (self.config is None) == (self.peft_config is None):
            raise ValueError("give either 'config' or 'peft_config' (PEFT's adapter_config.json)")
        return self
