"""Second moments of projections' inputs, stored as the upper triangles of symmetric matrices.

Computed by `training.statistics`, read by the mixing methods that need them (`registry.mixing.regmean`, and
`recompress` by inputs). float32 on disk, float64 in computations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from registry.adapters.lora import LORA_B
from registry.adapters.masks import projection_names
from registry.spec import AdapterConfig


def measured_weights(config: AdapterConfig, names: Iterable[str]) -> list[str]:
    """The weights, among `names`, of projections whose inputs have second moments: all but a LoRA's B."""
    return [name for name in projection_names(config, names) if not name.endswith(LORA_B)]


def packed(moments: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix (n, n), row after row: (n (n + 1) / 2,) fp32."""
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
    """The size n of the matrix whose `packed` has that many values."""
    return (math.isqrt(8 * entries + 1) - 1) // 2


def packed_entries(size: int) -> int:
    """The number of values of `packed` of a matrix (size, size)."""
    return size * (size + 1) // 2
