"""LoRAs made narrower: of every module's update the nearest one of smaller rank (Eckart and Young, 1936).

The update B A (outputs, inputs) of a wide LoRA is never made: its squared singular values are the eigenvalues of
L^T (B^T B) L with A A^T = L L^T, which is as small as the rank. The same bits everywhere (`fixed_order`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from registry.adapters.fixed_order import Array, eigen, product, root
from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.spec import LoraConfig

NOTHING = 1e-12
"""Of the largest squared singular value: what is smaller is rounding, and left out."""


def narrow_loras(config: LoraConfig, tensors: Tensors, widths: Mapping[str, int], _seed: int) -> dict[str, Tensor]:
    """The tensors in double precision with each module's rank as `widths` says at most.

    `config` has every alpha equal to its rank, so that the update is B A, before and after.
    """
    found = {name: tensor.to(torch.float64) for name, tensor in tensors.items()}
    for path, module in config.modules().items():
        if module.rank > widths[path]:
            down, up = PREFIX + path + LORA_A, PREFIX + path + LORA_B
            narrower = _truncated(found[down].numpy(), found[up].numpy(), widths[path])
            found[down], found[up] = map(torch.from_numpy, narrower)
    return found


def _truncated(down: Array, up: Array, rank: int) -> tuple[Array, Array]:
    """A (rank, inputs) and B (outputs, rank) of the nearest update of this rank, both of the same size.

    With V the leading eigenvectors and s the singular values, s^-3/2 V^T L^T B^T B A and B L V s^-1/2.
    """
    left, inner = root(product(down, down.T)), product(up.T, up)
    core = product(product(left.T, inner), left)
    squares, vectors = eigen((core + core.T) / 2)
    kept = squares[:rank] > NOTHING * max(0.0, float(squares[0]))
    sizes = np.sqrt(np.where(kept, squares[:rank], 1.0))
    turned = product(left, vectors[:, :rank]) * np.where(kept, 1.0 / np.sqrt(sizes), 0.0)
    back = product(turned.T, inner) / sizes[:, None]
    return product(back, down), product(up, turned)
