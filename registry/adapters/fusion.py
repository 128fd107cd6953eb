"""AdapterFusion (Pfeiffer et al., EACL 2021): attention over the outputs of frozen adapters, one site a layer.

For the state x that the members read, u_k = member k's update of it, y = h + sum_k p_k V u_k with p = softmax_k((Q x +
b_Q) . (K u_k + b_K)), as in AdapterHub 1.3 (`BertFusion` with its default, dynamic configuration). Its keys and values
are the members' outputs without their residual. The members' structure defines where they act, which state they read
and where updates are added. Members are part of the adapter, so that it needs nothing else, and never require
gradients; only Q, K and V train.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit
from registry.adapters.bottleneck import BottleneckLayer, check_input, ffn_edits
from registry.adapters.initial import Init, Shapes, initial_tensors, seeded
from registry.adapters.sites import Family, family_of, layer_sites
from registry.spec import BaseShape, FusionConfig

ATTENTION = ".fusion."
"""Infix of the names of the tensors that are trained."""


class Attention(nn.Module):
    """One query, over keys and values of the members' updates."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size, device="meta")
        self.key = nn.Linear(hidden_size, hidden_size, device="meta")
        self.value = nn.Linear(hidden_size, hidden_size, bias=False, device="meta")

    def forward(self, source: Tensor, updates: Tensor) -> Tensor:
        """(..., hidden) from `source` of that shape and `updates` (..., members, hidden)."""
        query: Tensor = self.query(source)
        scores = (self.key(updates) * query.unsqueeze(-2)).sum(-1)  # (..., members)
        mixed = (torch.softmax(scores, dim=-1).unsqueeze(-1) * updates).sum(-2)
        return cast(Tensor, self.value(mixed))  # linear, so that V of the mixture is the mixture of V


class FusionLayer(nn.Module):
    """The members of one layer and the attention over them."""

    def __init__(self, config: FusionConfig, shape: BaseShape, family: Family) -> None:
        super().__init__()
        self.fusion = Attention(shape.hidden_size)
        self._members = [f"member{number}" for number in range(config.members)]
        for name in self._members:
            self.add_module(name, BottleneckLayer(config.member, shape, family).requires_grad_(False))

    def update(self, source: Tensor) -> Tensor:
        """The update (..., hidden) for the `source` of that shape that the members read."""
        members = [cast(BottleneckLayer, self.get_submodule(name)) for name in self._members]
        updates = torch.stack([member.ffn.update(source) for member in members], dim=-2)
        return cast(Tensor, self.fusion(source.to(updates.dtype), updates))


class FusionAdapter(AdapterModule):
    """A fusion without values: built on torch's meta device and filled by its maker.

    Raises Incompatible where the base cannot take the members.
    """

    config: FusionConfig

    def __init__(self, config: FusionConfig, shape: BaseShape) -> None:
        super().__init__()
        self.config = config
        family = family_of(shape.model_type)
        check_input(config.member, family, shape.model_type)
        self.layers = nn.ModuleList(FusionLayer(config, shape, family) for _ in range(shape.num_layers))

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """Pairs of a base module and the edit of its output, over all layers."""
        for layer, sites in zip(self.layers, layer_sites(model), strict=True):
            yield from ffn_edits(self.config.member, sites, cast(FusionLayer, layer).update)


def initial_fusion(
    config: FusionConfig, shapes: Shapes, *, seed: int, init: Init, base: nn.Module | None
) -> dict[str, Tensor]:
    """fp32 tensors for `shapes`: Q and K as `torch.nn.Linear` starts, V the identity (AdapterHub's start).

    Members are drawn as bottlenecks by `init`, to be replaced by trained ones (`training.methods.fusion.fusion_start`).
    Raises what `initial_tensors` does.
    """
    members = {name: shape for name, shape in shapes.items() if ATTENTION not in name}
    drawn = initial_tensors(config.member, members, seed=seed, init=init, base=base)
    rng = seeded(seed, init)
    return {name: drawn[name] if name in drawn else _attention(rng, name, shapes) for name in shapes}


def _attention(rng: np.random.Generator, name: str, shapes: Shapes) -> Tensor:
    if name.endswith(".value.weight"):
        return torch.eye(shapes[name][0])
    bound = 1.0 / np.sqrt(shapes[name][0])  # square matrices: as many inputs as outputs
    return torch.from_numpy(rng.uniform(-bound, bound, size=shapes[name]).astype(np.float32))
