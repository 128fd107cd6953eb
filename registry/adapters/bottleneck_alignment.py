"""Bottlenecks whose neurons are put into one order: a permutation of neurons changes nothing that a bottleneck does.

For site and ingredient, neurons are matched to those of a reference so that the sum of <D_j, D'_k> + c_j c'_k +
<U_j, U'_k> is largest (Hungarian matching; weight matching of Git Re-Basin: Ainsworth et al., ICLR 2023,
https://arxiv.org/abs/2209.04836). LayerNorms are folded in before, and of ReLU's neurons, which may be scaled by
a > 0 if U is divided by it, both sides are made equally large. The same bits everywhere (`fixed_order`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[attr-defined]  # no stubs
from torch import Tensor

from registry.adapters.bottleneck_mixing import join_bottlenecks
from registry.adapters.fixed_order import Array, product, total
from registry.adapters.loadable import Tensors
from registry.adapters.mixture import everywhere
from registry.spec import BottleneckConfig


def align_bottlenecks(config: BottleneckConfig, tensors: Tensors, reference: Tensors | None) -> dict[str, Tensor]:
    """The same bottleneck in double precision with folded scale and norms, neurons in the order of `reference`.

    `reference` is one that has been through this function itself; None for the one that others are to follow.
    """
    found = join_bottlenecks([config], [tensors], [everywhere(1.0)])
    for site in [name.removesuffix("up.weight") for name in found if name.endswith(".up.weight")]:
        names = [site + name for name in ("down.weight", "down.bias", "up.weight")]
        down, bias, up = (found[name].double().numpy() for name in names)
        rows = np.concatenate([down, bias[:, None], up.T], axis=1)  # (width, 2 hidden + 1)
        if config.activation == "relu":
            rows = _balanced(rows, down.shape[1] + 1)
        if reference is not None:
            down, bias, up = (reference[name].numpy() for name in names)
            rows = rows[_order(rows, np.concatenate([down, bias[:, None], up.T], axis=1))]
        hidden = (rows.shape[1] - 1) // 2
        values = rows[:, :hidden], rows[:, hidden], rows[:, hidden + 1 :].T
        found |= {name: torch.from_numpy(value.copy()) for name, value in zip(names, values, strict=True)}
    return {name: tensor.to(torch.float64) for name, tensor in found.items()}


def _balanced(rows: Array, inputs: int) -> Array:
    """Rows whose first `inputs` entries and whose others are of one length each; those without one are left alone."""
    squares = rows * rows
    before, after = total(squares[:, :inputs], 1), total(squares[:, inputs:], 1)
    both = (before > 0) & (after > 0)
    grown = np.sqrt(np.sqrt(np.where(both, after, 1.0) / np.where(both, before, 1.0)))[:, None]
    return np.concatenate([rows[:, :inputs] * grown, rows[:, inputs:] / grown], axis=1)


def _order(rows: Array, reference: Array) -> Sequence[int]:
    """For each row of the reference the row that goes with it."""
    gain = product(reference, rows.T)
    return [int(at) for at in linear_sum_assignment(gain, maximize=True)[1]]
