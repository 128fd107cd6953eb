"""Bottlenecks made narrower: of the neurons of a wide one those that say most, and an up-projection made for them.

Of z = g(D x + c) on probes x that are drawn by a seed the neurons are picked one after the other, each the one that
explains most of what is left of y = U z + u (orthogonal matching pursuit with many outputs: Tropp et al., Signal
Processing 86, 2006). Then [U', u'] is the ridge regression of y on theirs. No text and no base model is looked at.
Probes have mean 0 and variance 1 over the hidden size, as what a LayerNorm gives. One half of their variance lies where
the down-projections look: what training put there says which inputs there are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from registry.adapters.bottleneck import ACTIVATIONS
from registry.adapters.loadable import Tensors
from registry.spec import BottleneckConfig

PROBES = 4096
STEPS = 2**15
"""Probes are drawn as whole numbers of this size at most, evenly."""
VARIANCE = STEPS * (STEPS + 1) / 3
"""Of such a number."""
RIDGE = 1e-3
"""Of the neurons' mean variance."""
ALIKE = 1e-9
"""Of the largest gain: gains that differ by less are the same but for rounding."""
SILENT = 1e-9
"""Of the neurons' mean variance: what varies less is not picked for what it explains."""


def narrow_bottlenecks(
    config: BottleneckConfig, tensors: Tensors, widths: Mapping[str, int], seed: int, _read: object = None
) -> dict[str, Tensor]:
    """The tensors of `config`, in double precision, with each site's bottleneck as wide as `widths` says at most.

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
    """(probes, hidden), each of mean 0 and variance 1."""
    wide, hidden = down.shape
    probes = _drawn(draw, hidden) / VARIANCE**0.5
    read = _drawn(draw, wide) @ down
    read -= read.mean(1, keepdim=True)
    size = read.square().mean().sqrt()
    if size > 0:
        probes += read / size
    probes -= probes.mean(1, keepdim=True)
    scaled: Tensor = probes / probes.square().mean(1, keepdim=True).sqrt()
    return scaled


def _drawn(draw: np.random.Generator, columns: int) -> Tensor:
    return torch.from_numpy(draw.integers(-STEPS, STEPS, (PROBES, columns), endpoint=True)).to(torch.float64)


def _fit(neurons: Tensor, up: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which neurons stay, in their order; their up-projection (hidden, width); what is added to the bias (hidden)."""
    means = neurons.mean(0)
    spread = torch.cov(neurons.T, correction=0)  # (wide, wide)
    wanted = spread @ up.T  # (wide, hidden): how each neuron goes with each output
    picked = _picked(spread.clone(), wanted.clone(), width)
    own = spread[picked][:, picked]
    ridge = RIDGE * own.trace() / width
    shrunk = own + torch.eye(width, dtype=torch.float64) * (ridge if ridge > 0 else 1.0)
    fitted = torch.linalg.solve(shrunk, wanted[picked]).T
    return picked, fitted, up @ means - fitted @ means[picked]


def _picked(spread: Tensor, wanted: Tensor, width: int) -> Tensor:
    """The neurons of which each explains most of the outputs after those before it; overwrites its arguments.

    Of neurons that are alike but for rounding it is the first.
    """
    least = SILENT * spread.trace() / len(spread)
    picked: list[int] = []
    for _ in range(width):
        own = spread.diagonal()
        gains = torch.where(own > least, wanted.square().sum(1) / own, 0.0)
        gains[picked] = -1.0
        best = int((gains >= gains.max() * (1 - ALIKE)).nonzero()[0])
        picked.append(best)
        if own[best] > least:
            share = spread[:, best] / own[best]
            wanted -= share[:, None] * wanted[best]
            spread -= share[:, None] * spread[best]
    return torch.tensor(sorted(picked))
