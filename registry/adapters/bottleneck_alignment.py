"""Bottlenecks whose neurons are put into one order: a permutation of neurons changes nothing that a bottleneck does.

For site and ingredient, neurons are matched to those of a reference so that the sum of <D_j, D'_k> + c_j c'_k +
<U_j, U'_k> is largest (Hungarian matching; weight matching of Git Re-Basin: Ainsworth et al., ICLR 2023,
https://arxiv.org/abs/2209.04836). LayerNorms are folded in before, and of ReLU's neurons, which may be scaled by
a > 0 if U is divided by it, both sides are made equally large.
"""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[attr-defined]  # no stubs
from torch import Tensor

from registry.adapters.bottleneck_mixing import join_bottlenecks
from registry.adapters.loadable import Tensors
from registry.adapters.mixture import everywhere
from registry.spec import BottleneckConfig


def align_bottlenecks(config: BottleneckConfig, tensors: Tensors, reference: Tensors | None) -> dict[str, Tensor]:
    """The same bottleneck in double precision with folded scale and norms, neurons in the order of `reference`.

    `reference` is one that has been through this function itself; None for the one that others are to follow.
    """
    aligned = {
        name: tensor.double() for name, tensor in join_bottlenecks([config], [tensors], [everywhere(1.0)]).items()
    }
    for site in [name.removesuffix("up.weight") for name in aligned if name.endswith(".up.weight")]:
        names = [site + name for name in ("down.weight", "down.bias", "up.weight")]
        neurons = _neurons(*(aligned[name] for name in names))
        inputs = aligned[names[0]].shape[1]
        if config.activation == "relu":
            neurons = _balanced(neurons, inputs + 1)
        if reference is not None:
            neurons = neurons[_order(neurons, _neurons(*(reference[name] for name in names)))]
        values = neurons[:, :inputs], neurons[:, inputs], neurons[:, inputs + 1 :].T
        aligned |= zip(names, values, strict=True)
    return aligned


def _neurons(down: Tensor, bias: Tensor, up: Tensor) -> Tensor:
    """(width, 2 hidden + 1): what each reads, its bias, and what it adds."""
    return torch.cat([down, bias[:, None], up.T], 1)


def _balanced(neurons: Tensor, inputs: int) -> Tensor:
    """Neurons whose first `inputs` entries and whose others are of one length each; those without one are unchanged."""
    before, after = neurons[:, :inputs].norm(dim=1), neurons[:, inputs:].norm(dim=1)
    grown = torch.where((before > 0) & (after > 0), (after / before).sqrt(), 1.0)[:, None]
    return torch.cat([neurons[:, :inputs] * grown, neurons[:, inputs:] / grown], 1)


def _order(neurons: Tensor, reference: Tensor) -> Tensor:
    """For each neuron of the reference the one that goes with it."""
    return torch.from_numpy(linear_sum_assignment(reference @ neurons.T, maximize=True)[1])
