"""LoRA (Hu et al., ICLR 2022) on any linear modules of a base model, as PEFT stores and computes it.

y = W x + b + s B A x with A (rank, inputs), B (outputs, rank), s = alpha / rank, or alpha / sqrt(rank) with rsLoRA
(Kalajdzievski, 2023). Needs no table of families: modules are named by their full paths, and `BaseShape.linears`
lists them. Modules the LoRA does not name are not edited.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit
from registry.adapters.initial import NEAR_IDENTITY_STD, Init, Shapes, seeded, truncated_normal
from registry.adapters.slots import Projection, add_linear, linear
from registry.errors import Incompatible
from registry.spec import BaseShape, LoraConfig

PREFIX = "base_model.model."
"""PEFT's prefix of a module's path in the names of tensors."""
LORA_A = ".lora_A.weight"
LORA_B = ".lora_B.weight"
SHOWN = 20


def stacked_rank(rank: int) -> int:
    """The rank with which a LoRA is stacked: the next power of two."""
    return 1 << (rank - 1).bit_length()


class LoraUpdate(nn.Module):
    """The update of one linear module."""

    def __init__(self, sizes: tuple[int, int], rank: int, scaling: float) -> None:
        super().__init__()
        inputs, outputs = sizes
        self.lora_A = Projection(inputs, rank, bias=False)
        self.lora_B = Projection(rank, outputs, bias=False)
        self.scaling = scaling

    def on_input(self, _module: nn.Module, source: Tensor, hidden: Tensor) -> Tensor:
        """`hidden` (..., outputs) plus the update of `source` (..., inputs), in the dtype of `hidden`."""
        dtype = self.lora_A.weight.dtype
        if not torch.is_autocast_enabled(source.device.type):  # autocast casts both to its own dtype
            source = source.to(dtype)
        narrow = linear(source, self.lora_A)
        narrow = narrow if self.scaling == 1 else narrow * self.scaling
        return add_linear(hidden, narrow, self.lora_B).to(hidden.dtype)

    def make_stackable(self) -> None:
        """Pad the rank with zeros to a power of two, and multiply A by the scale."""
        a, b = self.lora_A.weight.detach(), self.lora_B.weight.detach()
        padding = stacked_rank(len(a)) - len(a)
        self.lora_A.weight = nn.Parameter(F.pad(a * self.scaling, (0, 0, 0, padding)), requires_grad=False)
        self.lora_B.weight = nn.Parameter(F.pad(b, (0, padding)), requires_grad=False)
        self.scaling = 1.0


class LoraAdapter(AdapterModule):
    """A LoRA without values: built on torch's meta device and filled by its maker.

    Its modules are nested as the base's are, so that `state_dict()` has PEFT's names. Raises Incompatible naming
    every module that is no linear module of the base.
    """

    config: LoraConfig

    def __init__(self, config: LoraConfig, shape: BaseShape) -> None:
        super().__init__()
        modules = config.modules()
        _refuse_unknown([path for path in modules if path not in shape.linears], shape)
        self.config = config
        self._updates = {
            path: LoraUpdate(shape.linears[path], module.rank, config.scaling(module))
            for path, module in modules.items()
        }
        branches: dict[str, nn.Module] = {"": self}
        for path, update in self._updates.items():
            parent, _, name = (PREFIX + path).rpartition(".")
            _branch(branches, parent).add_module(name, update)

    def stackable(self) -> AdapterModule:
        """Itself, changed to ranks that are powers of two and a scale of 1, which computes the same."""
        for update in self._updates.values():
            update.make_stackable()
        return self

    def settings(self) -> Hashable:
        """Its scales; modules and ranks are in the names and shapes of its tensors."""
        return tuple(update.scaling for update in self._updates.values())

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """Pairs of a linear module of the base and the edit of its output."""
        for path, update in self._updates.items():
            yield model.get_submodule(path), update.on_input


def _branch(branches: dict[str, nn.Module], path: str) -> nn.Module:
    """The module at a path, created and added to `branches`, the modules by their paths, where it is missing."""
    if path not in branches:
        parent, _, name = path.rpartition(".")
        branches[path] = nn.Module()
        _branch(branches, parent).add_module(name, branches[path])
    return branches[path]


def _refuse_unknown(paths: list[str], shape: BaseShape) -> None:
    if not paths:
        return
    named = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    example = next(iter(shape.linears), None)
    raise Incompatible(
        f"The base model has no linear module {named}"
        + (f"; its modules are named like {example}." if example else ": its linear modules are not known."),
        param="base_model",
        problems=[f"The base model has no linear module {path}." for path in paths[:SHOWN]],
    )


def initial_lora(_config: LoraConfig, shapes: Shapes, *, seed: int, init: Init, **_unused: object) -> dict[str, Tensor]:
    """fp32 tensors for `shapes`: A uniform as PEFT's Kaiming with a = sqrt(5), B zero, so exactly the base at step 0.

    With `small_b` B is N(0, 1e-2) truncated at two standard deviations: near the base, with gradients in A from the
    first step, which scores for pruning need. Every other `init` leaves it at zero. Drawn with NumPy's PCG64 in
    canonical order, like `initial.initial_tensors`. Raises InvalidParameter for an unknown `init` or a negative seed.
    """
    rng = seeded(seed, init)
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith(LORA_B):
            small = NEAR_IDENTITY_STD * truncated_normal(rng, shape) if init == "small_b" else np.zeros(shape)
            tensors[name] = torch.from_numpy(small.astype(np.float32))
            continue
        bound = 1.0 / math.sqrt(shape[1])  # sqrt(6 / ((1 + a^2) fan_in)) for a = sqrt(5)
        tensors[name] = torch.from_numpy(rng.uniform(-bound, bound, size=shape).astype(np.float32))
    return tensors
