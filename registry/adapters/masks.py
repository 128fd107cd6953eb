"""Masks of pruned adapters, which hold entries of the projections at zero (SparseAdapter, section 2).

Used to build, check, store, average and prune adapters. A mask has one bit per entry, 1 if it is kept, in row-major
order. It is packed as by `numpy.packbits`, in a uint8 tensor `<projection>.mask` beside `<projection>.weight`. Adapters
with `pruned` in their configuration have masks. Only the `projections` that the structure names are masked, never a
bias, a norm, a head or a prefix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule
from registry.spec import AdapterConfig, Pruned
from registry.tensor_file import canonical_order

MASK = ".mask"
_WEIGHT = ".weight"


def is_mask(name: str) -> bool:
    """Return True if a tensor of this name is a mask."""
    return name.endswith(MASK)


def mask_name(weight: str) -> str:
    """The name of the mask of a projection's weight."""
    return weight.removesuffix(_WEIGHT) + MASK


def without_masks(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without masks, in their order."""
    return {name: tensor for name, tensor in tensors.items() if not is_mask(name)}


def packed_bytes(entries: int) -> int:
    """Bytes of a mask of that many entries."""
    return -(-entries // 8)


def pack(keep: Tensor) -> Tensor:
    """uint8 (ceil(entries / 8),) from bool of any shape; the bits after the last entry are 0."""
    return torch.from_numpy(np.packbits(keep.detach().cpu().reshape(-1).numpy().astype(bool)))


def unpack(packed: Tensor, size: Sequence[int]) -> Tensor:
    """bool of shape `size` on the CPU from uint8 (ceil(entries / 8),)."""
    bits = np.unpackbits(packed.detach().cpu().numpy(), count=math.prod(size))
    return torch.from_numpy(bits.astype(bool)).reshape(tuple(size))


def projections(config: AdapterConfig, names: Iterable[str]) -> dict[str, list[str]]:
    """Weights that may be masked among `names`, in canonical order, by the prefix of their union's member."""
    weights = [(name, name.removesuffix(_WEIGHT)) for name in canonical_order(names) if name.endswith(_WEIGHT)]
    return {
        prefix: [name for name, path in weights if name.startswith(prefix) and _leaf(path) in member.projections]
        for prefix, member in config.prunable().items()
    }


def projection_names(config: AdapterConfig, names: Iterable[str]) -> list[str]:
    """Weights that may be masked among `names`, those of all members together."""
    return [name for weights in projections(config, names).values() for name in weights]


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


# --- in modules and files -------------------------------------------------------------------------


def add_masks(module: nn.Module) -> None:
    """Give the projections of pruned adapters, a union's members included, a buffer `mask`, whose values follow."""
    for linear in _masked_linears(module):
        size = packed_bytes(linear.weight.numel())
        linear.register_buffer("mask", torch.zeros(size, dtype=torch.uint8, device=linear.weight.device))


def _masked_linears(module: nn.Module) -> Iterator[nn.Linear]:
    for adapter in module.modules():
        if not isinstance(adapter, AdapterModule) or "" not in adapter.config.prunings():
            continue
        for name, linear in adapter.named_modules():
            if isinstance(linear, nn.Linear) and _leaf(name) in adapter.config.projections:
                yield linear


def mask_problems(config: AdapterConfig, tensors: Mapping[str, Tensor]) -> list[str]:
    """One sentence for every fault of the masks of tensors whose names and shapes are those of `config`."""
    problems = []
    for prefix, pruned in config.prunings().items():
        names = projections(config, tensors)[prefix]
        entries = sum(tensors[name].numel() for name in names)
        masked = 0
        for name in names:
            problems += _one_mask_problems(name, tensors[name], tensors[mask_name(name)])
            masked += int((~unpack(tensors[mask_name(name)], tensors[name].shape)).sum())
        problems += _count_problems(prefix, pruned, masked, entries, projections=len(names))
    return problems


def _one_mask_problems(name: str, weight: Tensor, packed: Tensor) -> list[str]:
    problems = []
    padding = np.unpackbits(packed.numpy())[weight.numel() :]
    if padding.any():
        problems.append(f"Tensor {mask_name(name)!r} has {int(padding.sum())} bits set beyond the last entry.")
    wrong = int((weight[~unpack(packed, weight.shape)] != 0).sum())
    if wrong:
        problems.append(f"Tensor {name!r} holds {wrong} entries that are masked and not zero.")
    return problems


def _count_problems(prefix: str, pruned: Pruned, masked: int, entries: int, *, projections: int) -> list[str]:
    """One sentence where the count is not exact, or the sparsity is off by more than rounding, once a projection."""
    member = f" of {prefix.removesuffix('.')}" if prefix else ""
    if masked != pruned.masked:
        return [f"The masks{member} leave out {masked} entries, and the configuration says {pruned.masked}."]
    if abs(masked - pruned.sparsity * entries) > max(1, projections):
        return [f"The masks{member} leave out {masked} of {entries} entries, no share of {pruned.sparsity:g}."]
    return []


# --- choosing -------------------------------------------------------------------------------------


def keep_highest(scores: Mapping[str, Tensor], masked: int) -> dict[str, Tensor]:
    """Masks, bool of each score's shape, that are false at exactly the `masked` lowest scores over all of them.

    Of equal scores the lower index is masked first: by the order of `scores`, then row-major.
    """
    flat = np.concatenate([score.detach().cpu().reshape(-1).numpy() for score in scores.values()])
    keep = np.ones(flat.size, dtype=bool)
    keep[np.argsort(flat, kind="stable")[:masked]] = False
    ends = np.cumsum([score.numel() for score in scores.values()])
    masks = np.split(keep, ends[:-1])
    return {
        name: torch.from_numpy(mask).reshape(score.shape)
        for (name, score), mask in zip(scores.items(), masks, strict=True)
    }
