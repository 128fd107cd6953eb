"""Change the ranks and modules of LoRAs: lower ranks for `recompress`, one rank and scale for `soup export`.

`narrow_loras` replaces every module's update by the nearest one of lower rank (Eckart and Young, 1936).

The update B A (outputs, inputs) of a wide LoRA is never computed. Its squared singular values are the eigenvalues of
L^T (B^T B) L with A A^T = L L^T, a matrix as small as the rank.

With second moments C = E[x x^T] of the module's inputs, the nearest update minimises E|B A x - B' A' x|^2: that of
B A C^1/2, so that A C A^T replaces A A^T. The singular vectors kept are those of the outputs, onto which B A is
projected, so that nothing has to be divided by C^1/2 again.

`on_all_linears` adds modules, for a training that starts there.

`uniform` is for engines that read no pattern of modules. It computes the same: smaller ranks are padded with zeros, and
scales go into B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX, initial_lora
from registry.spec import BaseShape, LoraConfig, LoraModule

ROUNDING = 1e-12
"""Share of the largest squared singular value below which one counts as rounding, and as 0."""
ADDED_SCALE = 4.0
"""Scale of added modules, alpha over rank: they start from nothing, and learn more in few steps at a higher scale."""
Moments = Callable[[str], Tensor]
"""Path of a module -> second moments of its inputs (inputs, inputs), which for all modules may take gigabytes."""


def narrow_loras(
    config: LoraConfig, tensors: Tensors, widths: Mapping[str, int], _seed: int, input_moments: Moments | None = None
) -> dict[str, Tensor]:
    """The tensors in double precision with each module's rank at most as in `widths`.

    `config` has every alpha equal to its rank, so that the update is B A, before and after. With `input_moments` the
    updates are the nearest on such inputs.
    """
    narrow = {name: tensor.to(torch.float64) for name, tensor in tensors.items()}
    for path, module in config.modules().items():
        if module.rank > widths[path]:
            a, b = PREFIX + path + LORA_A, PREFIX + path + LORA_B
            moments = None if input_moments is None else input_moments(path)
            narrow[a], narrow[b] = _nearest(narrow[a], narrow[b], widths[path], moments)
    return narrow


def _nearest(a: Tensor, b: Tensor, rank: int, moments: Tensor | None) -> tuple[Tensor, Tensor]:
    """A (rank, inputs) and B (outputs, rank), of equal norm, of the update of this rank that is nearest to B A.

    With V the leading eigenvectors and s the singular values they are s^-3/2 V^T L^T B^T B A and B L V s^-1/2. The
    largest entry of each column of the new B is positive: eigenvectors leave the sign open.
    """
    values, vectors = torch.linalg.eigh(a @ a.T if moments is None else a @ moments @ a.T)
    root = vectors * values.clamp(min=0).sqrt()  # L
    squares, vectors = torch.linalg.eigh(root.T @ (b.T @ b) @ root)  # smallest first
    squares, vectors = squares.flip(0)[:rank], vectors.flip(1)[:, :rank]
    sizes = torch.where(squares > ROUNDING * squares[0], squares, 0.0).sqrt()
    shares = torch.where(sizes > 0, 1 / sizes, 0.0)
    outputs = b @ root @ vectors * shares.sqrt()
    outputs *= outputs.gather(0, outputs.abs().argmax(0, keepdim=True)).sign()
    return shares[:, None] * (outputs.T @ b @ a), outputs


def is_uniform(config: LoraConfig) -> bool:
    """Return True if all modules have one rank and one scale already."""
    modules = config.modules().values()
    return len({(module.rank, config.scaling(module)) for module in modules}) == 1


def uniform(config: LoraConfig, tensors: Tensors) -> tuple[LoraConfig, dict[str, Tensor]]:
    """The configuration and tensors in fp32, with the largest rank and scale 1 everywhere."""
    modules = config.modules()
    rank = max(module.rank for module in modules.values())
    wide: dict[str, Tensor] = {}
    for path, module in modules.items():
        a, b = (tensors[f"{PREFIX}{path}{end}"].to(torch.float32) for end in (LORA_A, LORA_B))
        padding = rank - module.rank
        wide[f"{PREFIX}{path}{LORA_A}"] = pad(a, (0, 0, 0, padding))  # (rank, inputs)
        wide[f"{PREFIX}{path}{LORA_B}"] = pad(b * config.scaling(module), (0, padding))  # (outputs, rank)
    return LoraConfig.of(dict.fromkeys(modules, LoraModule(rank, rank))), wide


def on_all_linears(
    config: LoraConfig, tensors: Tensors, shape: BaseShape, *, seed: int
) -> tuple[LoraConfig, dict[str, Tensor]]:
    """The configuration and tensors in fp32 with every linear module of the layers; they compute the same.

    The modules that the LoRA lacks get its largest rank, a random A and B = 0.
    """
    modules = config.modules()
    rank = max(module.rank for module in modules.values())
    alpha = ADDED_SCALE * (math.sqrt(rank) if config.rslora else rank)
    added = {path: LoraModule(rank, alpha) for path in sorted(shape.layer_linears()) if path not in modules}
    sizes: dict[str, tuple[int, ...]] = {}
    for path in added:
        inputs, outputs = shape.linears[path]
        sizes |= {f"{PREFIX}{path}{LORA_A}": (rank, inputs), f"{PREFIX}{path}{LORA_B}": (outputs, rank)}
    complete = LoraConfig.of({**modules, **added}, rslora=config.rslora)
    same = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    return complete, {**same, **initial_lora(complete, sizes, seed=seed, init="near_identity")}
