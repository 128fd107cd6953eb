"""Several adapters of one structure side by side on a base model, each with a coefficient at every site.

The update at site l is sum_i w_li f_i(x): the exact mixture of `mixing.concat` with trainable weights.
Each site is one pair of products for all adapters, and one backward pass gives the gradient of every coefficient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from registry.adapters import from_tensors, join_adapters, sites_of
from registry.adapters.attach import AdapterModule, Edit
from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.adapters.mixture import constant_factor
from registry.spec import AdapterConfig, BaseShape, widths_together


@dataclass(frozen=True)
class _Site:
    """The up-projection at one site: the joined one without coefficients, each adapter's bias, and their widths."""

    layer: nn.Linear
    up: Tensor  # (outputs, widths)
    biases: Tensor | None  # (adapters, outputs)
    widths: Tensor  # (adapters,)


class WeightedAdapter(AdapterModule):
    """The adapters of `configs` with tensors `loaded`, fp32; only `coefficients` (sites, adapters) is trained.

    `sites` names its rows; all coefficients are 0 at first, which is the base model. After a change of them
    `apply_coefficients` has to be called before the next forward pass. Raises Internal for structures that are not
    put side by side; the caller checks that the adapters can be (`mixing.concat.check`).
    """

    def __init__(
        self,
        configs: Sequence[AdapterConfig],
        loaded: Sequence[Tensors],
        shape: BaseShape,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        factor = constant_factor(1.0)
        self.config = configs[0].joined(widths_together(configs))
        self.joined = from_tensors(self.config, shape, join_adapters(configs, loaded, [factor] * len(configs)))
        self.joined.to(device).eval().requires_grad_(False)
        alone = [join_adapters([config], [tensors], [factor]) for config, tensors in zip(configs, loaded, strict=True)]
        self.sites = tuple(sorted(sites_of(self.config, shape)))
        self._sites = [_site_of(self.joined, site, alone) for site in self.sites]
        self.coefficients = nn.Parameter(torch.zeros(len(self.sites), len(configs), device=device))
        self.apply_coefficients()

    def apply_coefficients(self) -> None:
        """Multiply the up-projections by the current coefficients, differentiably."""
        for weights, site in zip(self.coefficients, self._sites, strict=True):
            site.layer.weight = site.up * weights.repeat_interleave(site.widths)
            if site.biases is not None:
                site.layer.bias = weights @ site.biases

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """The edits of the joined adapter."""
        yield from self.joined.edits(model)


def _site_of(joined: AdapterModule, site: str, alone: Sequence[dict[str, Tensor]]) -> _Site:
    """One site; removes the parameters of its up-projection, which are computed from coefficients from now on."""
    bottleneck = f"{site}.up.weight" in joined.state_dict(keep_vars=True)
    name = f"{site}.up" if bottleneck else (PREFIX + site + LORA_B).removesuffix(".weight")
    narrow = f"{site}.down.weight" if bottleneck else PREFIX + site + LORA_A
    layer = joined.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    up, biases = layer.weight.detach(), None
    if layer.bias is not None:
        biases = torch.stack([tensors[f"{name}.bias"] for tensors in alone]).to(up)
        del layer.bias
    del layer.weight
    widths = torch.tensor([len(tensors[narrow]) if narrow in tensors else 0 for tensors in alone], device=up.device)
    return _Site(layer, up, biases, widths)
