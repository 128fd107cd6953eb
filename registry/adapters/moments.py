"""Second moments of what projections read, as they are stored: the upper triangles of symmetric matrices.

Made by `training.statistics`, read by the mixing methods that need them (`registry.mixing.regmean`, and `recompress` by
inputs). float32 on disk, float64 where it is computed with.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from registry.adapters.lora import LORA_B
from registry.adapters.masks import projections
from registry.spec import AdapterConfig


def read_by(config: AdapterConfig, names: Iterable[str]) -> list[str]:
    """Of the tensors of an adapter the weights of projections whose inputs are looked at: all but a LoRA's B."""
    found = (name for some in projections(config, names).values() for name in some)
    return [name for name in found if not name.endswith(LORA_B)]


def packed(moments: Tensor) -> Tensor:
    """Of a symmetric matrix (n, n) the upper triangle, row after row: (n (n + 1) / 2,) fp32."""
    rows, columns = torch.triu_indices(*moments.shape)
    return moments[rows, columns].to(torch.float32)


def unpacked(values: Tensor, size: int) -> Tensor:
    """The symmetric matrix (size, size) of `packed`, float64."""
    moments = torch.empty(size, size, dtype=torch.float64)
    rows = torch.split(values, [*range(size, 0, -1)])
    for row, entries in enumerate(rows):  # lists of indices would take more than the matrix
        moments[row, row:] = entries
        moments[row:, row] = entries
    return moments


def matrix_size(entries: int) -> int:
    """The size of the matrix that so many values are of."""
    return (math.isqrt(8 * entries + 1) - 1) // 2


def packed_entries(size: int) -> int:
    """How many values `packed` has of a matrix (size, size)."""
    return size * (size + 1) // 2
