"""Several adapters of one structure side by side on a base model, each with a coefficient at every site.

What is added at site l is sum_i w_li f_i(x): the exact mixture of `soup.concat`, whose weights are still to be found.
Each site is one pair of products for all adapters, and one backward pass gives the gradient of every coefficient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from registry.adapters import entry_of, from_tensors, sites_of
from registry.adapters.attach import AdapterModule, Edit
from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.adapters.mixture import everywhere
from registry.errors import Internal
from registry.spec import AdapterConfig, BaseShape


@dataclass(frozen=True)
class _Site:
    """The up-projection at one site: the joined one without coefficients, each adapter's bias, and their widths."""

    layer: nn.Linear
    up: Tensor  # (outputs, widths)
    biases: Tensor | None  # (adapters, outputs)
    widths: Tensor  # (adapters,)


class WeightedAdapter(AdapterModule):
    """The adapters of `configs` with tensors `loaded`, fp32; `coefficients` (sites, adapters) is all that is learnt.

    `sites` are in the order of its rows; all coefficients are 0 at first, which is the base model. After a change of
    them `apply_coefficients` has to be called before the next forward pass. Raises Internal for structures that are not
    put side by side; that adapters go together is for the caller to check (`soup.concat.check`).
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
        join = entry_of(configs[0]).join
        if join is None:
            raise Internal(f"Adapters of method {configs[0].method!r} were to be put side by side.")
        widths: Counter[str] = Counter()
        for config in configs:
            widths.update(config.widths())
        one = everywhere(1.0)
        self.config = configs[0].joined(widths)
        self.joined = from_tensors(self.config, shape, join(configs, loaded, [one] * len(configs)))
        self.joined.to(device).eval().requires_grad_(False)
        alone = [join([config], [tensors], [one]) for config, tensors in zip(configs, loaded, strict=True)]
        self.sites = tuple(sorted(sites_of(self.config, shape)))
        self._at = [_site_of(self.joined, site, alone) for site in self.sites]
        self.coefficients = nn.Parameter(torch.zeros(len(self.sites), len(configs), device=device))
        self.apply_coefficients()

    def apply_coefficients(self) -> None:
        """Put the coefficients of now into the up-projections, differentiably."""
        for weights, at in zip(self.coefficients, self._at, strict=True):
            at.layer.weight = at.up * weights.repeat_interleave(at.widths)
            if at.biases is not None:
                at.layer.bias = weights @ at.biases

    def check_fit(self, model: nn.Module) -> None:
        """Raises Incompatible, with every reason, where the adapters cannot be put on `model`."""
        self.joined.check_fit(model)

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """Those of the adapters joined."""
        yield from self.joined.edits(model)


def _site_of(joined: AdapterModule, site: str, alone: Sequence[dict[str, Tensor]]) -> _Site:
    """The parts of a site, whose up-projection gives up its parameters: they are made of coefficients from now on."""
    bottleneck = f"{site}.up.weight" in joined.state_dict(keep_vars=True)
    name = f"{site}.up" if bottleneck else (PREFIX + site + LORA_B).removesuffix(".weight")
    narrow = f"{site}.down.weight" if bottleneck else PREFIX + site + LORA_A
    layer = joined.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    up, biases = layer.weight.detach(), None
    if layer.bias is not None:
        biases = torch.stack([one[f"{name}.bias"] for one in alone]).to(up)
        del layer.bias
    del layer.weight
    widths = torch.tensor([len(one[narrow]) if narrow in one else 0 for one in alone], device=up.device)
    return _Site(layer, up, biases, widths)
