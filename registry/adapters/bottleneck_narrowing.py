"""Narrow a bottleneck: keep the neurons that explain most of its output, and fit an up-projection to them.

Neurons z = g(D x + c) are computed on probes x that are drawn by a seed, and picked one after the other, each the one
that explains most of the rest of y = U z + u (orthogonal matching pursuit with many outputs: Tropp et al., Signal
Processing 86, 2006). Then [U', u'] is the ridge regression of y on the picked neurons. Reads no text and no base model.
Probes have mean 0 and variance 1 over the hidden size, like the outputs of a LayerNorm. One half of their variance lies
in the row space of the down-projections, because training has shaped it by the real inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor

from registry.adapters.bottleneck import ACTIVATIONS
from registry.adapters.loadable import Tensors
from registry.spec import BottleneckConfig

PROBES = 4096
STEPS = 2**15
"""Probes are drawn uniformly from the whole numbers up to this absolute value."""
VARIANCE = STEPS * (STEPS + 1) / 3
"""Variance of such a number."""
RIDGE = 1e-3
"""Ridge of the regression, as a share of the neurons' mean variance."""
EQUAL_GAIN = 1e-9
"""Share of the largest gain within which gains count as equal: they differ by rounding."""
CONSTANT = 1e-9
"""Share of the neurons' mean variance below which a neuron counts as constant and has no gain."""


def narrow_bottlenecks(
    config: BottleneckConfig, tensors: Tensors, widths: Mapping[str, int], seed: int, _input_moments: object = None
) -> dict[str, Tensor]:
    """The tensors of `config`, in double precision, with each site's bottleneck at most as wide as `widths`.

    Bapna-Firat's LayerNorms have to be folded (gamma 1, beta 0), as `join_bottlenecks` leaves them; other norms stay.
    """
    width = sum(widths.values())
    narrow = {name: tensor.to(torch.float64) for name, tensor in tensors.items()}
    sites = [name.removesuffix("up.weight") for name in tensors if name.endswith(".up.weight")]
    for number, site in enumerate(sites):
        down, bias, up = (narrow[site + name] for name in ("down.weight", "down.bias", "up.weight"))
        if len(down) <= width:
            continue
        draw = np.random.Generator(np.random.PCG64([seed, number]))
        neurons = ACTIVATIONS[config.activation](_probes(draw, down) @ down.T + bias)  # (probes, wide)
        picked, fitted, constant = _fit(neurons, up, width)
        narrow[site + "down.weight"], narrow[site + "down.bias"] = down[picked], bias[picked]
        narrow[site + "up.weight"] = fitted
        narrow[site + "up.bias"] = narrow[site + "up.bias"] + constant
    return narrow


def _probes(draw: np.random.Generator, down: Tensor) -> Tensor:
    """The probes (probes, hidden), each of mean 0 and variance 1."""
    wide, hidden = down.shape
    probes = _uniform(draw, hidden) / VARIANCE**0.5
    in_row_space = _uniform(draw, wide) @ down
    in_row_space -= in_row_space.mean(1, keepdim=True)
    size = in_row_space.square().mean().sqrt()
    if size > 0:
        probes += in_row_space / size
    probes -= probes.mean(1, keepdim=True)
    return cast(Tensor, probes / probes.square().mean(1, keepdim=True).sqrt())


def _uniform(draw: np.random.Generator, columns: int) -> Tensor:
    return torch.from_numpy(draw.integers(-STEPS, STEPS, (PROBES, columns), endpoint=True)).to(torch.float64)


def _fit(neurons: Tensor, up: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The indices of the kept neurons, their up-projection (hidden, width), the change of the bias (hidden,)."""
    means = neurons.mean(0)
    covariance = torch.cov(neurons.T, correction=0)  # (wide, wide)
    with_outputs = covariance @ up.T  # (wide, hidden): covariance of each neuron with each output
    picked = _pick(covariance.clone(), with_outputs.clone(), width)
    among_picked = covariance[picked][:, picked]
    ridge = RIDGE * among_picked.trace() / width
    shrunk = among_picked + torch.eye(width, dtype=torch.float64) * (ridge if ridge > 0 else 1.0)
    fitted = torch.linalg.solve(shrunk, with_outputs[picked]).T
    return picked, fitted, up @ means - fitted @ means[picked]


def _pick(covariance: Tensor, with_outputs: Tensor, width: int) -> Tensor:
    """The ascending indices of the picked neurons; overwrites its arguments.

    Each explains most of the outputs beyond those picked before it; of equal gains the first is picked.
    """
    least = CONSTANT * covariance.trace() / len(covariance)
    picked: list[int] = []
    for _ in range(width):
        variances = covariance.diagonal()
        gains = torch.where(variances > least, with_outputs.square().sum(1) / variances, 0.0)
        gains[picked] = -1.0
        best = int((gains >= gains.max() * (1 - EQUAL_GAIN)).nonzero()[0])
        picked.append(best)
        if variances[best] > least:
            share = covariance[:, best] / variances[best]
            with_outputs -= share[:, None] * with_outputs[best]
            covariance -= share[:, None] * covariance[best]
    return torch.tensor(sorted(picked))
