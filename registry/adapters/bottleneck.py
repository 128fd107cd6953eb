"""Bottleneck adapters (METHODS section 2), one module class for the four structures.

- Bapna-Firat (Bapna & Firat, EMNLP 2019): y = h + s (U g(D LN(h) + b_D) + b_U), with a LayerNorm of its own;
  h is the feed-forward module's output before the residual add, or the layer's output with `input="residual"`.
- Houlsby (Houlsby et al., ICML 2019): y = z + s (U g(D z + b_D) + b_U) after both sub-layers, before the residual
  add; the base's LayerNorms are trained too (`base_norm` holds the copies that replace them while attached).
- Pfeiffer (Pfeiffer et al., EACL 2021): the same after the feed-forward module only.
- parallel (He et al., ICLR 2022, MAM): y = h + s (U g(D x + b_D) + b_U), x = the feed-forward module's argument.

s is `config.scale`, g `config.activation`, D (m, d), U (d, m) for hidden size d and bottleneck m.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit
from registry.adapters.sites import LayerSites, family_of, layer_sites
from registry.errors import Incompatible
from registry.spec import BaseShape, BottleneckConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


class Bottleneck(nn.Module):
    """Down-projection, activation, up-projection, and a LayerNorm before them for Bapna-Firat."""

    def __init__(self, config: BottleneckConfig, hidden_size: int, *, device: torch.device | str) -> None:
        super().__init__()
        if config.structure == "bapna_firat":
            self.norm = nn.LayerNorm(hidden_size, eps=config.layer_norm_eps, device=device)
        else:
            self.register_module("norm", None)
        self.down = nn.Linear(hidden_size, config.bottleneck, device=device)
        self.up = nn.Linear(config.bottleneck, hidden_size, device=device)
        self._activation = ACTIVATIONS[config.activation]
        self._scale = config.scale

    def forward(self, source: Tensor, hidden: Tensor) -> Tensor:
        """`hidden` plus the bottleneck of `source`, both (batch, time, hidden), in the dtype of `hidden`."""
        x = source.to(self.down.weight.dtype)
        if self.norm is not None:
            x = self.norm(x)
        update: Tensor = self.up(self._activation(self.down(x)))
        if self._scale != 1.0:
            update = update * self._scale
        return (hidden + update).to(hidden.dtype)

    def on_output(self, _module: nn.Module, _source: Tensor, hidden: Tensor) -> Tensor:
        """The edit of a module whose output is read and added to."""
        out: Tensor = self(hidden, hidden)
        return out

    def on_input(self, _module: nn.Module, source: Tensor, hidden: Tensor) -> Tensor:
        """The edit of a module whose argument is read and whose output is added to."""
        out: Tensor = self(source, hidden)
        return out


class TrainedNorm(nn.Module):
    """Weight and bias that replace those of a LayerNorm of the base; epsilon stays the base's."""

    def __init__(self, hidden_size: int, *, device: torch.device | str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, device=device))
        self.bias = nn.Parameter(torch.empty(hidden_size, device=device))

    def instead(self, norm: nn.Module, source: Tensor, hidden: Tensor) -> Tensor:
        """The edit of a LayerNorm: its argument normalised with these parameters instead."""
        if not isinstance(norm, nn.LayerNorm):
            raise Incompatible(f"Houlsby adapters replace LayerNorms; this base model has {type(norm).__name__}.")
        x = source.to(self.weight.dtype)
        return F.layer_norm(x, norm.normalized_shape, self.weight, self.bias, norm.eps).to(hidden.dtype)


class BottleneckLayer(nn.Module):
    """What is put on one layer of the base."""

    def __init__(self, config: BottleneckConfig, hidden_size: int, *, norms: int, device: torch.device | str) -> None:
        super().__init__()
        self.ffn = Bottleneck(config, hidden_size, device=device)
        if config.structure == "houlsby":
            self.attention = Bottleneck(config, hidden_size, device=device)
            self.base_norm = nn.ModuleList(TrainedNorm(hidden_size, device=device) for _ in range(norms))
        self._config = config

    def edits(self, sites: LayerSites) -> Iterator[tuple[nn.Module, Edit]]:
        """Pairs of a base module and the edit of its output."""
        if self._config.structure == "parallel":
            yield sites.ffn, self.ffn.on_input
            return
        yield (sites.block if self._config.input == "residual" else sites.ffn), self.ffn.on_output
        if self._config.structure == "houlsby":
            yield sites.attention, self.attention.on_output
            for norm, trained in zip(sites.norms, self.base_norm, strict=True):
                assert isinstance(trained, TrainedNorm)
                yield norm, trained.instead


class BottleneckAdapter(AdapterModule):
    """A bottleneck adapter of all layers, without values: built on torch's meta device and filled by its maker."""

    def __init__(self, config: BottleneckConfig, shape: BaseShape, *, device: torch.device | str = "meta") -> None:
        super().__init__()
        norms = len(family_of(shape.model_type).norms)
        if config.structure == "houlsby" and not norms:
            raise Incompatible(
                f"Houlsby adapters train the base's LayerNorms, and family {shape.model_type!r} has none.",
                param="config",
            )
        self.config = config
        self.num_layers = shape.num_layers
        self.hidden_size = shape.hidden_size
        self.layers = nn.ModuleList(
            BottleneckLayer(config, shape.hidden_size, norms=norms, device=device) for _ in range(shape.num_layers)
        )

    def check_fit(self, model: nn.Module) -> None:
        """Raises Incompatible for an unknown family, another number of layers or another hidden size."""
        found = len(layer_sites(model)), int(getattr(model.config, "hidden_size", 0))
        if found != (self.num_layers, self.hidden_size):
            raise Incompatible(
                f"The adapter is for {self.num_layers} layers of hidden size {self.hidden_size}; this base model "
                f"has {found[0]} of {found[1]}.",
                param="base_model",
            )

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """Pairs of a base module and the edit of its output, over all layers."""
        for layer, sites in zip(self.layers, layer_sites(model), strict=True):
            assert isinstance(layer, BottleneckLayer)
            yield from layer.edits(sites)
