"""The structures of adapters: their tensors, their initial values, and modules built from tensors.

`STRUCTURES` is the only list of them; other modules go through the functions here and the configurations' own methods.
Nothing here reads files: bytes become tensors in `weights`.

Canonical tensor names, for layer i: `layers.<i>.<site>.down.weight` (m, d), `.down.bias` (m), `.up.weight` (d, m),
`.up.bias` (d) with site `ffn` or `attention`; `layers.<i>.ffn.norm.weight|bias` (d) for Bapna-Firat;
`layers.<i>.base_norm.<j>.weight|bias` (d) for Houlsby, without a bias where the base's norms have none. A LoRA's are
PEFT's, for each module of the base by its path: `base_model.model.<path>.lora_A.weight` (rank, inputs) and
`.lora_B.weight` (outputs, rank). Each projection of a pruned adapter has a `.mask` beside its weight (`masks`).
Canonical order: by layer number, then name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, attached
from registry.adapters.bottleneck import BottleneckAdapter
from registry.adapters.bottleneck_mixing import BottleneckMixture, align_bottlenecks, join_bottlenecks
from registry.adapters.bottleneck_narrowing import narrow_bottlenecks
from registry.adapters.experts import BankAdapter, initial_bank, mean_routes, merge_bank
from registry.adapters.fusion import FusionAdapter, initial_fusion
from registry.adapters.head import HeadModule, initial_head
from registry.adapters.initial import Init, Shapes, initial_tensors
from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX, LoraAdapter, initial_lora, stacked_rank
from registry.adapters.lora_mixing import LoraMixture, join_loras
from registry.adapters.lora_ranks import Moments, narrow_loras
from registry.adapters.masks import add_masks, is_mask
from registry.adapters.mixture import Constant, Factor, Mixture
from registry.adapters.prefix import PROMPT, PrefixAdapter, initial_prefix
from registry.adapters.union import UnionAdapter, UnionMixture, initial_union
from registry.errors import Incompatible, InvalidParameter, UnknownMethod
from registry.spec import AdapterConfig, BaseShape, BottleneckConfig
from registry.tensor_file import canonical_order

__all__ = [
    "STRUCTURES",
    "AdapterModule",
    "Init",
    "StructureEntry",
    "attached",
    "bytes_in_memory",
    "create",
    "entry_of",
    "expected_tensors",
    "from_tensors",
    "join_adapters",
    "mixture_of",
    "paper_config",
    "sites_of",
    "tensor_problems",
]


@dataclass(frozen=True)
class StructureEntry:
    """The functions of one structure that need tensors; `spec.structures` has those that need the configuration alone.

    - `build` makes the module on the meta device.
    - `initial` draws its first tensors for names and shapes.
    - `join` puts several adapters side by side as one.
    - `narrow` makes a joined adapter narrower: configuration, tensors, widths, seed, and second moments of the inputs
      of each module, or None.
    - `align` puts the neurons of one adapter into the order of another's.
    - `mixture` makes the exact mixture of such adapters, without any at first.
    - `merge` computes the mean of a bank's experts, and `routes` the adapters whose mean output is that of all routes
      through the bank.

    None where the structure has no such function, which its configurations say too (`joinable`, `no_exact_mixture`).
    """

    name: str
    paper: str
    build: Callable[[Any, BaseShape], AdapterModule]
    initial: Callable[..., dict[str, Tensor]]
    join: Callable[[Sequence[Any], Sequence[Tensors], Sequence[Factor]], dict[str, Tensor]] | None = None
    align: Callable[[Any, Tensors, Tensors | None], dict[str, Tensor]] | None = None
    narrow: Callable[[Any, Tensors, Mapping[str, int], int, Moments | None], dict[str, Tensor]] | None = None
    mixture: Callable[[Any, BaseShape], Mixture] | None = None
    merge: Callable[[Any, Tensors], dict[str, Tensor]] | None = None
    routes: Callable[[Any, Tensors], list[dict[str, Tensor]]] | None = None


def _build(config: AdapterConfig, shape: BaseShape) -> AdapterModule:
    return entry_of(config).build(config, shape)


def _initial(config: AdapterConfig, shapes: Shapes, **start: object) -> dict[str, Tensor]:
    return entry_of(config).initial(config, shapes, **start)


def mixture_of(config: AdapterConfig, shape: BaseShape) -> Mixture:
    """The exact mixture of adapters of this configuration, without any at first."""
    make = entry_of(config).mixture
    return Constant(None) if make is None else make(config, shape)


STRUCTURES: dict[str, StructureEntry] = {
    "bottleneck": StructureEntry(
        name="bottleneck",
        paper="Houlsby et al., ICML 2019; Bapna & Firat, EMNLP 2019; Pfeiffer et al., EACL 2021; He et al., ICLR 2022",
        build=BottleneckAdapter,
        initial=initial_tensors,
        join=join_bottlenecks,
        align=align_bottlenecks,
        narrow=narrow_bottlenecks,
        mixture=BottleneckMixture,
    ),
    "lora": StructureEntry(
        name="lora",
        paper="Hu et al., ICLR 2022; rsLoRA: Kalajdzievski, 2023",
        build=LoraAdapter,
        initial=initial_lora,
        join=join_loras,
        narrow=narrow_loras,
        mixture=LoraMixture,
    ),
    "prefix": StructureEntry(name="prefix", paper="Li & Liang, ACL 2021", build=PrefixAdapter, initial=initial_prefix),
    "head": StructureEntry(
        name="head",
        paper="Devlin et al., NAACL 2019, section 4; Radford et al., 2018, section 3.2",
        build=HeadModule,
        initial=initial_head,
        mixture=lambda _config, _shape: Constant(0.0),
    ),
    "union": StructureEntry(
        name="union",
        paper="MAM: He et al., ICLR 2022",
        build=lambda config, shape: UnionAdapter(config, [_build(member, shape) for member in config.members]),
        initial=partial(initial_union, initial=_initial),
        mixture=lambda config, shape: UnionMixture(
            {member.method: mixture_of(member, shape) for member in config.members}
        ),
    ),
    "fusion": StructureEntry(
        name="fusion", paper="Pfeiffer et al., EACL 2021", build=FusionAdapter, initial=initial_fusion
    ),
    "adamix": StructureEntry(
        name="adamix",
        paper="AdaMix: Wang et al., EMNLP 2022",
        build=lambda config, shape: BankAdapter(config, _build(config.expert, shape)),
        initial=partial(initial_bank, initial=_initial),
        merge=merge_bank,
        routes=mean_routes,
    ),
}
"""The structures by `method` of their configuration.

A new one: its configuration in registry/spec/structures, a member of `AdapterConfig` in registry/spec/config.py,
exported by registry/spec; a file here; its entry above. Also tests/registry/adapters/test_contract.py, the glossary and
`make openapi`; to train it training/spec.py, to select it alone `--pool-method` (adaptersoup/cli/selection_flags.py).
tests/registry/adapters/test_toy_structure.py takes one from push to soup.
"""

_PAPER: dict[str, tuple[Literal["relu", "gelu"], float]] = {
    "houlsby": ("gelu", 1.0),
    "pfeiffer": ("relu", 1.0),
    "bapna_firat": ("relu", 1.0),
    "parallel": ("relu", 4.0),
}


def paper_config(
    structure: Literal["houlsby", "pfeiffer", "bapna_firat", "parallel"], *, bottleneck: int = 64
) -> BottleneckConfig:
    """A bottleneck with its paper's activation and scale (docs/explanation/methods.md#structures)."""
    activation, scale = _PAPER[structure]
    return BottleneckConfig(structure=structure, bottleneck=bottleneck, activation=activation, scale=scale)


def entry_of(config: AdapterConfig) -> StructureEntry:
    """The entry of a configuration's structure; raises UnknownMethod."""
    entry = STRUCTURES.get(config.method)
    if entry is None:
        methods = ", ".join(sorted(STRUCTURES))
        raise UnknownMethod(f"Method {config.method!r} is not one of {methods}.", param="config")
    return entry


def join_adapters(
    configs: Sequence[AdapterConfig], loaded: Sequence[Tensors], factors: Sequence[Factor]
) -> dict[str, Tensor]:
    """The tensors of adapters of one `joinable` structure side by side as one, each times its factor."""
    join = entry_of(configs[0]).join
    assert join is not None
    return join(configs, loaded, factors)


def _built(config: AdapterConfig, shape: BaseShape) -> AdapterModule:
    """The module of a configuration on the meta device, with masks where it is pruned."""
    module = _build(config, shape)
    add_masks(module)
    return module


def expected_tensors(config: AdapterConfig, shape: BaseShape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an adapter's tensors in canonical order.

    Raises UnknownMethod, or Incompatible where the base cannot take it.
    """
    state = _built(config, shape).state_dict()
    return {name: tuple(state[name].shape) for name in canonical_order(state)}


def bytes_in_memory(config: AdapterConfig, shape: BaseShape) -> int:
    """The most bytes that an adapter takes on a base model (`batched.ReadyAdapter`), whatever the dtype of its file.

    Tensors are in fp32, LoRAs have the ranks in which they are stacked, and a prefix also has its keys and values.
    Raises UnknownMethod, or Incompatible where the base cannot take it.
    """
    total = 0
    for name, size in expected_tensors(config, shape).items():
        values = math.prod(size) * (2 if name.endswith(PROMPT) else 1)
        if name.endswith((LORA_A, LORA_B)):
            rank = size[0] if name.endswith(LORA_A) else size[1]
            values = values // rank * stacked_rank(rank)
        total += values if is_mask(name) else 4 * values
    return total


def sites_of(config: AdapterConfig, shape: BaseShape) -> frozenset[str]:
    """The sites of an adapter's updates: `layers.3.ffn` of a bottleneck, of a LoRA the paths of its modules.

    Empty for structures that are not put side by side.
    """
    if not config.joinable:
        return frozenset()
    prefixes = {".up.weight": "", LORA_B: PREFIX}
    return frozenset(
        name.removesuffix(suffix).removeprefix(prefix)
        for name in expected_tensors(config, shape)
        for suffix, prefix in prefixes.items()
        if name.endswith(suffix)
    )


def create(
    config: AdapterConfig, shape: BaseShape, *, seed: int, init: Init = "near_identity", base: nn.Module | None = None
) -> AdapterModule:
    """A fresh adapter, fp32, on the CPU, ready to train; Houlsby's needs `base` to copy its LayerNorms.

    Raises InvalidParameter (see `initial.initial_tensors`, and for a pruned adapter), UnknownMethod or Incompatible.
    """
    if config.prunings():
        raise InvalidParameter("A pruned adapter is not drawn: draw the dense one, and prune it.", param="config")
    tensors = _initial(config, expected_tensors(config, shape), seed=seed, init=init, base=base)
    return from_tensors(config, shape, tensors)


def from_tensors(config: AdapterConfig, shape: BaseShape, tensors: Mapping[str, Tensor]) -> AdapterModule:
    """An adapter with copies of `tensors` in fp32; raises Incompatible with every wrong name and shape."""
    module = _built(config, shape)
    expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    problems = tensor_problems(expected, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    if problems:
        raise Incompatible(
            f"The tensors are not those of the adapter's configuration on this base: {problems[0]}",
            param="tensors",
            problems=problems,
        )
    copies = {
        name: tensor.detach().to(torch.uint8 if is_mask(name) else torch.float32, copy=True)
        for name, tensor in tensors.items()
    }
    module.load_state_dict(copies, assign=True)
    return module


def tensor_problems(expected: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """One sentence for every tensor that is missing, of another shape, or not expected."""
    problems = [f"Tensor {name} {list(expected[name])} is missing." for name in expected if name not in shapes]
    problems += [
        f"Tensor {name} has shape {list(shapes[name])}, and {list(shape)} is needed."
        for name, shape in expected.items()
        if name in shapes and tuple(shapes[name]) != tuple(shape)
    ]
    return problems + [f"Tensor {name[:80]!r} is not expected." for name in shapes if name not in expected]
