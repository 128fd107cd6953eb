"""Join, mix and align bottlenecks: side by side as one, the mean of their updates, neurons in one order.

Side by side: D = [D_i diag(gamma_i)], c = [D_i beta_i + c_i], U = [f_i U_i], u = sum f_i u_i, with Bapna-Firat's
LayerNorms folded into the projections (gamma 1, beta 0); f_i is an ingredient's factor times its scale. Used through
the structure's entry in `STRUCTURES`. Bit-identical on every machine: element-wise products and sums in fixed order in
double precision, no BLAS.

Aligned: a permutation of neurons leaves a bottleneck's output unchanged. By site and ingredient, neurons are matched
to those of a reference so that the sum of <D_j, D'_k> + c_j c'_k + <U_j, U'_k> is largest (Hungarian matching; weight
matching of Git Re-Basin: Ainsworth et al., ICLR 2023, https://arxiv.org/abs/2209.04836). LayerNorms are folded
first. A ReLU neuron may be scaled by a > 0 if its column of U is divided by it, so that its two sides are made equally
large.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment  # type: ignore[attr-defined]  # no stubs
from torch import Tensor

from registry.adapters.bottleneck import Bottleneck, BottleneckAdapter
from registry.adapters.loadable import Tensors
from registry.adapters.mixture import Factor, Measured, constant_factor
from registry.spec import BaseShape, BottleneckConfig

PROBES = 64
SEED = 0


def join_bottlenecks(
    configs: Sequence[BottleneckConfig], loaded: Sequence[Tensors], factors: Sequence[Factor]
) -> dict[str, Tensor]:
    """The tensors, in double precision, of the bottleneck whose output is the sum of `factors` times the ingredients'.

    Houlsby's trained LayerNorms, which are the same in all, are unchanged.
    """
    mixed: dict[str, Tensor] = {}
    for name, tensor in loaded[0].items():
        if ".base_norm." in name:
            mixed[name] = tensor
        elif name.endswith(".up.weight"):
            site = name.removesuffix("up.weight")
            scaled = [factor(site[:-1]) * config.scale for factor, config in zip(factors, configs, strict=True)]
            at_site = [{n: t for n, t in tensors.items() if n.startswith(site)} for tensors in loaded]
            mixed |= _join_site(at_site, scaled, site)
    return mixed


def _join_site(loaded: Sequence[Tensors], factors: Sequence[float], site: str) -> dict[str, Tensor]:
    """The bottleneck of one site from those of the ingredients."""
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
    """rows (m, d) times vector (d), summed by `cumsum`, whose order is the same on every machine."""
    return torch.from_numpy(np.cumsum((rows * vector).numpy(), axis=1)[:, -1].copy())


class BottleneckMixture(Measured):
    """The updates of bottlenecks for standard normal probes, the same for all, at every site.

    Houlsby's trained LayerNorms are linear in their tensors: their average is exact, and they are not measured.
    """

    def __init__(self, _config: BottleneckConfig, shape: BaseShape) -> None:
        self.shape = shape
        self._exact: dict[str, Tensor] = {}
        self._draw = np.random.Generator(np.random.PCG64(SEED))
        self._probes: list[Tensor] = []

    def add(self, config: BottleneckConfig, tensors: Tensors, factor: Factor) -> None:
        """Add the updates, each (probes, hidden)."""
        for site, update in self._updates(config, tensors).items():
            weighted = factor(site) * update
            self._exact[site] = self._exact[site] + weighted if site in self._exact else weighted

    def squares(self, config: BottleneckConfig, tensors: Tensors) -> dict[str, tuple[float, float]]:
        """Squared norms over all probes, as `Measured.squares` returns them."""
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
    """An equal bottleneck in double precision with folded scale and norms, neurons in the order of `reference`.

    `reference` is another result of this function; None for the first.
    """
    aligned = {
        name: tensor.double() for name, tensor in join_bottlenecks([config], [tensors], [constant_factor(1.0)]).items()
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
    """(width, 2 hidden + 1): each neuron's row of D, its bias, and its column of U."""
    return torch.cat([down, bias[:, None], up.T], 1)


def _balanced(neurons: Tensor, inputs: int) -> Tensor:
    """The neurons, rescaled so that their first `inputs` entries and the rest have equal norms, unless one is 0."""
    down, up = neurons[:, :inputs], neurons[:, inputs:]
    down_norms, up_norms = down.norm(dim=1), up.norm(dim=1)
    factors = torch.where((down_norms > 0) & (up_norms > 0), (up_norms / down_norms).sqrt(), 1.0)[:, None]
    return torch.cat([down * factors, up / factors], 1)


def _order(neurons: Tensor, reference: Tensor) -> Tensor:
    """The index of the neuron matched to each neuron of the reference."""
    return torch.from_numpy(linear_sum_assignment(reference @ neurons.T, maximize=True)[1])
