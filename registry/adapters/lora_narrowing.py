"""LoRAs made narrower: of every module's update the nearest one of smaller rank (Eckart and Young, 1936).

The update B A (outputs, inputs) of a wide LoRA is never made: its squared singular values are the eigenvalues of
L^T (B^T B) L with A A^T = L L^T, which is as small as the rank. The same bits everywhere (`fixed_order`).

Nearest on what the module reads, whose second moments are C = E[x x^T], is the one whose E|B A x - B' A' x|^2 is
smallest: that of B A C^1/2, so A C A^T stands where A A^T stood. The singular vectors kept are those of the outputs,
onto which B A is projected, and nothing has to be divided by C^1/2 again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from registry.adapters.fixed_order import Array, gram, product
from registry.adapters.fixed_order_eigen import eigen, root
from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.spec import LoraConfig

NOTHING = 1e-12
"""Of the largest squared singular value: what is smaller is rounding, and left out."""
Moments = Callable[[str], Array]
"""By the path of a module: (inputs, inputs). Made when asked for, since all together may take gigabytes."""
AT_ONCE = 2**19
"""Entries of the matrices whose eigenvectors are found together (4 MiB); more at a time saves no time."""


def narrow_loras(
    config: LoraConfig, tensors: Tensors, widths: Mapping[str, int], _seed: int, read: Moments | None = None
) -> dict[str, Tensor]:
    """The tensors in double precision with each module's rank as `widths` says at most.

    `config` has every alpha equal to its rank, so that the update is B A, before and after. With what modules `read`,
    the updates are the nearest on that.
    """
    found = dict(tensors)
    alike: dict[tuple[int, int], list[str]] = {}
    for path, module in config.modules().items():
        if module.rank > widths[path]:
            alike.setdefault((module.rank, widths[path]), []).append(path)
    for (wide, rank), paths in alike.items():
        some = max(1, AT_ONCE // wide**2)
        for first in range(0, len(paths), some):
            _narrow(found, paths[first : first + some], rank, read)
    return {name: tensor.to(torch.float64) for name, tensor in found.items()}


def _narrow(tensors: dict[str, Tensor], paths: Sequence[str], rank: int, read: Moments | None) -> None:
    """Put the nearest updates of this rank in the place of those of these modules, which have one rank.

    With V the leading eigenvectors and s the singular values they are s^-3/2 V^T L^T B^T B A and B L V s^-1/2: A (rank,
    inputs) and B (outputs, rank), both of the same size.
    """
    downs, ups = [PREFIX + path + LORA_A for path in paths], [PREFIX + path + LORA_B for path in paths]
    seen = [
        _seen(_double(tensors[down]), None if read is None else read(path))
        for path, down in zip(paths, downs, strict=True)
    ]
    left = root(np.stack(seen))
    inner = np.stack([gram(_double(tensors[up]).T) for up in ups])
    core = product(product(left.swapaxes(1, 2), inner), left)
    squares, vectors = eigen((core + core.swapaxes(1, 2)) / 2)
    kept = squares[:, :rank] > NOTHING * np.maximum(0.0, squares[:, :1])
    sizes = np.sqrt(np.where(kept, squares[:, :rank], 1.0))
    turned = product(left, vectors[:, :, :rank]) * np.where(kept, 1.0 / np.sqrt(sizes), 0.0)[:, None]
    back = product(turned.swapaxes(1, 2), inner) / sizes[:, :, None]
    for number, (down, up) in enumerate(zip(downs, ups, strict=True)):
        tensors[down] = torch.from_numpy(product(back[number], _double(tensors[down])))
        tensors[up] = torch.from_numpy(product(_double(tensors[up]), turned[number]))


def _double(tensor: Tensor) -> Array:
    values: Array = tensor.to(torch.float64).numpy()
    return values


def _seen(down: Array, moments: Array | None) -> Array:
    """A C A^T (rank, rank) of A (rank, inputs), C being the identity where nothing is said of what is read."""
    if moments is None:
        return gram(down)
    found = product(product(down, moments), down.T)
    return (found + found.T) / 2
