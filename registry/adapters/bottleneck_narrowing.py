"""Bottlenecks made narrower: of the neurons of a wide one those that say most, and an up-projection made for them.

Of z = g(D x + c) on probes x that are drawn by a seed the neurons are picked one after the other, each the one that
explains most of what is left of y = U z + u (orthogonal matching pursuit with many outputs: Tropp et al., Signal
Processing 86, 2006). Then [U', u'] is the ridge regression of y on theirs. No text and no base model is looked at.
Probes have mean 0 and variance 1 over the hidden size, as what a LayerNorm gives. One half of their variance lies where
the down-projections look: what training put there says which inputs there are. The same bits everywhere
(`fixed_order`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from registry.adapters.fixed_order import ACTIVATIONS, Array, product, solve, total
from registry.adapters.loadable import Tensors
from registry.spec import BottleneckConfig

PROBES = 4096
STEPS = 2**15
"""Probes are drawn as whole numbers of this size at most, evenly."""
VARIANCE = STEPS * (STEPS + 1) / 3
"""Of such a number."""
RIDGE = 1e-3
"""Of the neurons' mean variance."""
SILENT = 1e-9
"""Of the neurons' mean variance: what varies less is not picked for what it explains."""


def narrow_bottlenecks(
    config: BottleneckConfig, tensors: Tensors, widths: Mapping[str, int], seed: int, _read: object = None
) -> dict[str, Tensor]:
    """The tensors of `config`, in double precision, with each site's bottleneck as wide as `widths` says at most.

    Bapna-Firat's LayerNorms have to be folded (gamma 1, beta 0), as `join_bottlenecks` leaves them; other norms stay.
    """
    width = sum(widths.values())
    found = {name: tensor.to(torch.float64) for name, tensor in tensors.items()}
    sites = [name.removesuffix("up.weight") for name in tensors if name.endswith(".up.weight")]
    for number, site in enumerate(sites):
        down, bias, up, out = (
            found[site + name].numpy() for name in ("down.weight", "down.bias", "up.weight", "up.bias")
        )
        if len(down) <= width:
            continue
        draw = np.random.Generator(np.random.PCG64([seed, number]))
        neurons = ACTIVATIONS[config.activation](product(_probes(draw, down), down.T) + bias)  # (probes, wide)
        picked, fitted, constant = _fit(neurons, up, width)
        values = {
            "down.weight": down[picked],
            "down.bias": bias[picked],
            "up.weight": fitted,
            "up.bias": out + constant,
        }
        found |= {site + name: torch.from_numpy(value) for name, value in values.items()}
    return found


def _probes(draw: np.random.Generator, down: Array) -> Array:
    """(probes, hidden), each of mean 0 and variance 1."""
    wide, hidden = down.shape
    everywhere = draw.integers(-STEPS, STEPS, (PROBES, hidden), endpoint=True) / np.sqrt(VARIANCE)
    looked_at = product(draw.integers(-STEPS, STEPS, (PROBES, wide), endpoint=True).astype(np.float64), down)
    looked_at = _centred(looked_at)
    size = float(np.sqrt(total(total(looked_at * looked_at, 0), 0) / looked_at.size))
    probes: Array = _centred(everywhere + looked_at / size if size > 0 else everywhere)
    probes /= np.sqrt(total(probes * probes, 1)[:, None] / hidden)
    return probes


def _centred(rows: Array) -> Array:
    found: Array = rows - total(rows, 1)[:, None] / rows.shape[1]
    return found


def _fit(neurons: Array, up: Array, width: int) -> tuple[list[int], Array, Array]:
    """Which neurons stay, in their order; their up-projection (hidden, width); what is added to the bias (hidden)."""
    means = total(neurons, 0) / len(neurons)
    centred = neurons - means
    spread = product(centred.T, centred) / len(neurons)  # (wide, wide)
    wanted = product(spread, up.T)  # (wide, hidden): how each neuron goes with each output
    picked = _picked(spread.copy(), wanted.copy(), width)
    own = spread[np.ix_(picked, picked)]
    ridge = RIDGE * float(total(own.diagonal(), 0)) / width
    fitted = solve(own + np.eye(width) * (ridge if ridge > 0 else 1.0), wanted[picked]).T
    constant = product(up, means[:, None]) - product(fitted, means[picked][:, None])
    return picked, fitted, constant[:, 0]


def _picked(spread: Array, wanted: Array, width: int) -> list[int]:
    """The neurons of which each explains most of the outputs after those before it; takes the arrays apart."""
    least = SILENT * float(total(spread.diagonal(), 0)) / len(spread)
    picked: list[int] = []
    for _ in range(width):
        own = spread.diagonal()
        heard = own > least
        gains = np.where(heard, total(wanted * wanted, 1) / np.where(heard, own, 1.0), 0.0)
        gains[picked] = -1.0
        best = int(gains.argmax())
        picked.append(best)
        if heard[best]:
            share = spread[:, best] / own[best]
            wanted -= share[:, None] * wanted[best]
            spread -= share[:, None] * spread[best]
    return sorted(picked)
