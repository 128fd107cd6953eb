"""Bottleneck adapters (docs/explanation/methods.md#structures), one module class for the four structures.

On bases whose layers normalise before their sub-modules, with A(x) = s (U g(D x + b_D) + b_U):

- Bapna-Firat (Bapna & Firat, EMNLP 2019): y = h + A(LN(h)), with a LayerNorm of its own; h is the feed-forward
  module's output before the residual add, or the layer's output with `input="residual"`.
- Houlsby (Houlsby et al., ICML 2019): y = z + A(z) after both sub-layers, before the residual add; the base's norms
  are trained too (`base_norm` holds the copies that replace them while attached) unless `trained_norms` is false, as
  in AdapterHub's `double_seq_bn`.
- Pfeiffer (Pfeiffer et al., EACL 2021): the same after the feed-forward module only, or on the layer's output with
  `input="residual"` (AdapterHub's `seq_bn`).
- parallel (He et al., ICLR 2022, MAM): y = h + A(x), h the feed-forward module's output, x its argument, or with
  `input="residual"` the argument of the norm before it (AdapterHub's `par_bn`).

On bases that normalise after them (BERT: the layer's output is LN(h + x), x the residual stream) the definitions of
Houlsby, Bapna-Firat and parallel stay: LN(h + A(h) + x), and Bapna-Firat with `input="residual"` acts on the layer's
output after that norm. Pfeiffer with `input="residual"` is AdapterHub's there, which reads the output of the norm and
adds before it: LN(h + x + A(LN(h + x))) (`original_ln_before`, `original_ln_after` and `residual_before_ln`).

s is `config.scale`, g `config.activation`, D (m, d), U (d, m) for hidden size d and bottleneck m.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit
from registry.adapters.sites import Family, LayerSites, family_of, layer_sites
from registry.adapters.slots import Projection, layer_norm, linear, per_slot
from registry.errors import Incompatible, Internal
from registry.spec import BaseShape, BottleneckConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}


class Bottleneck(nn.Module):
    """Down-projection, activation, up-projection, and a LayerNorm before them for Bapna-Firat."""

    def __init__(self, config: BottleneckConfig, hidden_size: int) -> None:
        super().__init__()
        if config.structure == "bapna_firat":
            self.norm = nn.LayerNorm(hidden_size, eps=config.layer_norm_eps, device="meta")
        else:
            self.register_module("norm", None)
        self.down = Projection(hidden_size, config.bottleneck)
        self.up = Projection(config.bottleneck, hidden_size)
        self._activation = ACTIVATIONS[config.activation]
        self._scale = config.scale

    def update(self, source: Tensor) -> Tensor:
        """A(source), the update (batch, time, hidden) of a `source` of that shape, in the dtype of the adapter."""
        x = source.to(self.down.weight.dtype)
        if self.norm is not None:
            x = layer_norm(x, self.norm.weight, self.norm.bias, self.norm.eps)
        update = linear(self._activation(linear(x, self.down)), self.up)
        return update if self._scale == 1.0 else update * self._scale

    def forward(self, source: Tensor, hidden: Tensor) -> Tensor:
        """`hidden` plus the bottleneck of `source`, both (batch, time, hidden), in the dtype of `hidden`."""
        return (hidden + self.update(source)).to(hidden.dtype)


Update = Callable[[Tensor], Tensor]
"""Source (batch, time, hidden) -> its update, of the same shape."""


def ffn_edits(config: BottleneckConfig, sites: LayerSites, update: Update) -> Iterator[tuple[nn.Module, Edit]]:
    """Pairs of a base module and the edit of its output that add `update` at the site of `config` in one layer.

    Of Houlsby's two sites it is the one after the feed-forward module. The structure decides what `update` (of one
    bottleneck, or of a fusion of several) reads and where its result is added. Raises Incompatible for a norm to edit
    that is not of the family's kind.
    """
    residual = config.input == "residual"
    if config.structure == "parallel":
        parallel = _ParallelEdit(update)
        yield sites.norms[-1] if residual else sites.ffn_input, parallel.store_argument
        yield sites.ffn, parallel.add_update
    elif residual and sites.post_norm and config.structure == "pfeiffer":
        sites.check_norms()
        yield sites.norms[-1], partial(_update_before_norm, update)
    else:
        yield sites.block if residual else sites.ffn, partial(_update_output, update)


def _update_output(update: Update, _module: nn.Module, _source: Tensor, hidden: Tensor) -> Tensor:
    """Add the update of a module's output to it."""
    return (hidden + update(hidden)).to(hidden.dtype)


def _update_before_norm(update: Update, norm: nn.Module, source: Tensor, hidden: Tensor) -> Tensor:
    """Add the update of a norm's output to its argument, and normalise the sum."""
    assert isinstance(norm, nn.LayerNorm)
    x = (source + update(hidden)).to(hidden.dtype)
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class _ParallelEdit:
    """Add the update of one module's argument to the output of the feed-forward module, which runs after it."""

    def __init__(self, update: Update) -> None:
        self._update = update
        self._argument: Tensor | None = None

    def store_argument(self, _module: nn.Module, source: Tensor, hidden: Tensor) -> Tensor:
        self._argument = source
        return hidden

    def add_update(self, _module: nn.Module, _source: Tensor, hidden: Tensor) -> Tensor:
        argument, self._argument = self._argument, None
        if argument is None:
            raise Internal("A parallel adapter's layer ran without the module whose argument it reads.")
        return (hidden + self._update(argument)).to(hidden.dtype)


class TrainedNorm(nn.Module):
    """Weight, and bias of a LayerNorm, that replace those of a norm of the base; epsilon stays the base's."""

    def __init__(self, hidden_size: int, *, rms: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, device="meta"))
        self.bias: nn.Parameter | None
        self.register_parameter("bias", None if rms else nn.Parameter(torch.empty(hidden_size, device="meta")))

    def normalise(self, norm: nn.Module, source: Tensor, hidden: Tensor) -> Tensor:
        """The edit of a norm: its argument normalised with these parameters.

        RMSNorm is computed as transformers does, in fp32 at least, the weight last.
        """
        if self.bias is not None:
            assert isinstance(norm, nn.LayerNorm)
            return layer_norm(source.to(self.weight.dtype), self.weight, self.bias, norm.eps).to(hidden.dtype)
        x = source.to(torch.promote_types(source.dtype, torch.float32))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + cast(float, norm.variance_epsilon))
        return (per_slot(self.weight) * x.to(self.weight.dtype)).to(hidden.dtype)


class BottleneckLayer(nn.Module):
    """The bottlenecks, and trained norms, of one layer of the base."""

    def __init__(self, config: BottleneckConfig, shape: BaseShape, family: Family) -> None:
        super().__init__()
        self.ffn = Bottleneck(config, shape.hidden_size)
        if config.structure == "houlsby":
            self.attention = Bottleneck(config, shape.hidden_size)
            if config.trained_norms:
                self.base_norm = nn.ModuleList(
                    TrainedNorm(shape.hidden_size, rms=family.rms_norms) for _ in family.norms
                )
        self._config = config

    def edits(self, sites: LayerSites) -> Iterator[tuple[nn.Module, Edit]]:
        """Pairs of a base module and the edit of its output."""
        yield from ffn_edits(self._config, sites, self.ffn.update)
        if self._config.structure == "houlsby":
            yield sites.attention, self._on_attention
            if self._config.trained_norms:
                sites.check_norms()
                for norm, trained in zip(sites.norms, self.base_norm, strict=True):
                    assert isinstance(trained, TrainedNorm)
                    yield norm, trained.normalise

    def _on_attention(self, _module: nn.Module, _source: Tensor, hidden: Tensor) -> Tensor:
        return cast(Tensor, self.attention(hidden, hidden))


class BottleneckAdapter(AdapterModule):
    """A bottleneck adapter of all layers, without values: built on torch's meta device and filled by its maker.

    Raises Incompatible for a family without known sites, or where the structure's `input` has no meaning.
    """

    config: BottleneckConfig

    def __init__(self, config: BottleneckConfig, shape: BaseShape) -> None:
        super().__init__()
        family = family_of(shape.model_type)
        check_input(config, family, shape.model_type)
        self.config = config
        self.layers = nn.ModuleList(BottleneckLayer(config, shape, family) for _ in range(shape.num_layers))

    def stackable(self) -> AdapterModule:
        """This adapter itself."""
        return self

    def settings(self) -> Hashable:
        """Its configuration without masks, whose zeros are in the weights."""
        return self.config.model_copy(update={"pruned": None}).model_dump_json()

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """Pairs of a base module and the edit of its output, over all layers."""
        for layer, sites in zip(self.layers, layer_sites(model), strict=True):
            assert isinstance(layer, BottleneckLayer)
            yield from layer.edits(sites)


def check_input(config: BottleneckConfig, family: Family, model_type: str) -> None:
    """Raises Incompatible for parallel adapters of `input="residual"` where both inputs are the same tensor."""
    if config.structure == "parallel" and config.input == "residual" and family.post_norm:
        raise Incompatible(
            f"In base models of family {model_type!r}, the argument of the feed-forward module is the "
            "residual stream: use input='module' for a parallel adapter, which reads the same.",
            param="config",
        )
