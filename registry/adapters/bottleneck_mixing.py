"""Bottlenecks mixed exactly: several side by side as one, the mean of what they add, and neurons put into one order.

Side by side: D = [D_i diag(gamma_i)], c = [D_i beta_i + c_i], U = [f_i U_i], u = sum f_i u_i, with Bapna-Firat's
LayerNorms folded into the projections (gamma 1, beta 0); f_i is an ingredient's factor times its scale. Used through
the structure's entry in `STRUCTURES`. Bit-identical on every machine: element-wise products and sums in fixed order in
double precision, no BLAS.

Aligned: a permutation of neurons changes nothing that a bottleneck does. For site and ingredient, neurons are matched
to those of a reference so that the sum of <D_j, D'_k> + c_j c'_k + <U_j, U'_k> is largest (Hungarian matching; weight
matching of Git Re-Basin: Ainsworth et al., ICLR 2023, https://arxiv.org/abs/2209.04836). LayerNorms are folded in
before, and of ReLU's neurons, which may be scaled by a > 0 if U is divided by it, both sides are made equally large.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[attr-defined]  # no stubs
from torch import Tensor

from registry.adapters.bottleneck import Bottleneck, BottleneckAdapter
from registry.adapters.loadable import Tensors
from registry.adapters.mixture import Factor, Measured, everywhere
from registry.spec import BaseShape, BottleneckConfig

PROBES = 64
SEED = 0


def join_bottlenecks(
    configs: Sequence[BottleneckConfig], loaded: Sequence[Tensors], factors: Sequence[Factor]
) -> dict[str, Tensor]:
    """The tensors, in double precision, of the bottleneck whose output is the sum of `factors` times the others'.

    Every site of every layer; Houlsby's trained LayerNorms, which are the same in all, as they are.
    """
    mixed: dict[str, Tensor] = {}
    for name, tensor in loaded[0].items():
        if ".base_norm." in name:
            mixed[name] = tensor
        elif name.endswith(".up.weight"):
            site = name.removesuffix("up.weight")
            scaled = [factor(site[:-1]) * config.scale for factor, config in zip(factors, configs, strict=True)]
            mixed |= _site([{n: t for n, t in one.items() if n.startswith(site)} for one in loaded], scaled, site)
    return mixed


def _site(loaded: Sequence[Tensors], factors: Sequence[float], site: str) -> dict[str, Tensor]:
    """One bottleneck from those of the ingredients."""
    down, bias, up, out = [], [], [], torch.zeros(())
    for number, (tensors, factor) in enumerate(zip(loaded, factors, strict=True)):
        values = {name.removeprefix(site): tensor.to(torch.float64) for name, tensor in tensors.items()}
        rows, shift = values["down.weight"], values["down.bias"]  # (m, d), (m)
        if "norm.weight" in values:
            shift = shift + _dot(rows, values["norm.bias"])
            rows = rows * values["norm.weight"]
        down.append(rows)
        bias.append(shift)
        up.append(values["up.weight"] * factor)
        out = values["up.bias"] * factor if number == 0 else out + values["up.bias"] * factor
    mixed = {
        "down.weight": torch.cat(down),
        "down.bias": torch.cat(bias),
        "up.weight": torch.cat(up, 1),
        "up.bias": out,
    }
    if site + "norm.weight" in loaded[0]:
        mixed |= {"norm.weight": torch.ones_like(out), "norm.bias": torch.zeros_like(out)}
    return {site + name: tensor for name, tensor in mixed.items()}


def _dot(rows: Tensor, vector: Tensor) -> Tensor:
    """rows (m, d) times vector (d), added up from first to last: `cumsum` has no other order on any machine."""
    return torch.from_numpy(np.cumsum((rows * vector).numpy(), axis=1)[:, -1].copy())


class BottleneckMixture(Measured):
    """What bottlenecks add to standard normal probes, the same for all, at every site.

    Houlsby's trained LayerNorms are linear in their tensors: their average is exact, and they are left out.
    """

    def __init__(self, _config: BottleneckConfig, shape: BaseShape) -> None:
        self.shape = shape
        self._exact: dict[str, Tensor] = {}
        self._draw = np.random.Generator(np.random.PCG64(SEED))
        self._probes: list[Tensor] = []

    def add(self, config: BottleneckConfig, tensors: Tensors, factor: Factor) -> None:
        """Add the updates, each (probes, hidden)."""
        for site, update in self._updates(config, tensors).items():
            own = factor(site) * update
            self._exact[site] = self._exact[site] + own if site in self._exact else own

    def squares(self, config: BottleneckConfig, tensors: Tensors) -> dict[str, tuple[float, float]]:
        """Over all probes."""
        soup = self._updates(config, tensors)
        return {
            site: (float((soup[site] - exact).square().sum()), float(exact.square().sum()))
            for site, exact in self._exact.items()
        }

    @torch.no_grad()
    def _updates(self, config: BottleneckConfig, tensors: Tensors) -> dict[str, Tensor]:
        module = BottleneckAdapter(config, self.shape)
        module.load_state_dict({name: tensors[name].double() for name in module.state_dict()}, assign=True)
        sites = {name: site for name, site in module.named_modules() if isinstance(site, Bottleneck)}
        for _ in range(len(self._probes), len(sites)):
            self._probes.append(torch.from_numpy(self._draw.standard_normal((PROBES, self.shape.hidden_size))))
        return {
            name: site(probes, torch.zeros_like(probes))
            for (name, site), probes in zip(sites.items(), self._probes, strict=True)
        }


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
