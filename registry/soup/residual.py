"""How far a soup is from the exact mixture: the weighted mean of its ingredients' outputs in every layer.

Called by `cook` for every report. `watched` gathers what the exact mixture gives while a mixing method reads the
ingredients, so that none is read twice. In double precision and through BLAS: a figure of the report, no byte of the
soup depends on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from registry.adapters import from_tensors
from registry.adapters.bottleneck import Bottleneck
from registry.adapters.experts import mean_routes
from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.soup.compat import Part, members_of, scale_of
from registry.spec import (
    AdapterConfig,
    BankConfig,
    BaseShape,
    BottleneckConfig,
    FusionConfig,
    LoraConfig,
    Mixing,
    PrefixConfig,
)

PROBES = 64
SEED = 0


class ExactMixture(ABC):
    """What the ingredients give together, each with its weight, all times the mixing's scale."""

    def __init__(self, shape: BaseShape, mixing: Mixing) -> None:
        self.shape = shape
        self._scale = float(scale_of(mixing) or 1)

    def watched(self, part: Part) -> Part:
        """The part, taken into account when it is loaded; it has to be loaded exactly once.

        Of a bank of experts the exact mixture is the mean over all of its routes.
        """

        def load() -> Tensors:
            tensors = part.load()
            factor = float(part.weight) * self._scale
            if not isinstance(part.config, BankConfig):
                self.add(part.config, tensors, factor)
                return tensors
            routes = mean_routes(part.config, tensors)
            for route in routes:
                self.add(part.config.expert, route, factor / len(routes))
            return tensors

        return replace(part, load=load)

    @abstractmethod
    def add(self, config: AdapterConfig, tensors: Tensors, factor: float) -> None:
        """Take `factor` times an ingredient's update into account."""

    @abstractmethod
    def residual(self, config: AdapterConfig, tensors: Tensors) -> float | None:
        """The relative error of a soup; None where there is none (`no_residual`)."""


class Measured(ExactMixture):
    """A mixture of which the soup's difference has a size."""

    @abstractmethod
    def squares(self, config: AdapterConfig, tensors: Tensors) -> tuple[float, float]:
        """Squared norms of the soup's difference from the exact mixture, and of the exact mixture."""

    def residual(self, config: AdapterConfig, tensors: Tensors) -> float | None:
        """The relative error of a soup; None where the ingredients cancel out and nothing is left to compare with."""
        difference, size = self.squares(config, tensors)
        if difference == 0.0:
            return 0.0
        return float(np.sqrt(difference / size)) if size > 0.0 else None


def exact_mixture(config: AdapterConfig, shape: BaseShape, mixing: Mixing) -> ExactMixture:
    """The exact mixture for adapters of a method, before any ingredient; `config` is the soup's."""
    if isinstance(config, BottleneckConfig):
        return Probed(shape, mixing)
    return Factored(shape, mixing) if isinstance(config, LoraConfig) else Members(config, shape, mixing)


def no_residual(config: AdapterConfig) -> str:
    """Why a soup of this configuration has no residual, a sentence for people."""
    if _undefined(config):
        return "What a prefix or a fusion adds goes through a softmax: there is no exact mixture, and no residual."
    return "The ingredients cancel each other out: no residual can be given."


def _undefined(config: AdapterConfig) -> bool:
    return any(isinstance(one, PrefixConfig | FusionConfig) for one in members_of(config))


class Members(ExactMixture):
    """Unions: that of every member by itself, of which the largest error counts; none where a member has none.

    Heads are linear in their tensors: their average is exact, and they are left out.
    """

    def __init__(self, config: AdapterConfig, shape: BaseShape, mixing: Mixing) -> None:
        super().__init__(shape, mixing)
        measured = [one for one in members_of(config) if isinstance(one, BottleneckConfig | LoraConfig)]
        self._members = {one.method: exact_mixture(one, shape, mixing) for one in measured}

    def add(self, config: AdapterConfig, tensors: Tensors, factor: float) -> None:
        """Hand each member's tensors to its own mixture."""
        for one in members_of(config):
            if one.method in self._members:
                self._members[one.method].add(one, _of_member(tensors, one.method), factor)

    def residual(self, config: AdapterConfig, tensors: Tensors) -> float | None:
        """The largest of the members'; 0 of a head alone."""
        if _undefined(config):
            return None
        found = [
            self._members[one.method].residual(one, _of_member(tensors, one.method))
            for one in members_of(config)
            if one.method in self._members
        ]
        return None if None in found else max((one for one in found if one is not None), default=0.0)


def _of_member(tensors: Tensors, method: str) -> Tensors:
    return {name.removeprefix(f"{method}."): one for name, one in tensors.items() if name.startswith(f"{method}.")}


class Probed(Measured):
    """Bottlenecks: what they add to standard normal probes, the same for all, at every site.

    Houlsby's trained LayerNorms are linear in their tensors: their average is exact, and they are left out.
    """

    def __init__(self, shape: BaseShape, mixing: Mixing) -> None:
        super().__init__(shape, mixing)
        self._exact: list[Tensor] = []
        self._draw = np.random.Generator(np.random.PCG64(SEED))
        self._probes: list[Tensor] = []

    def add(self, config: AdapterConfig, tensors: Tensors, factor: float) -> None:
        """Add the updates, each (probes, hidden)."""
        updates = [factor * update for update in self._updates(config, tensors)]
        self._exact = [a + b for a, b in zip(self._exact, updates, strict=True)] if self._exact else updates

    def squares(self, config: AdapterConfig, tensors: Tensors) -> tuple[float, float]:
        """Over all sites and probes."""
        soup = self._updates(config, tensors)
        difference = sum(float((a - b).square().sum()) for a, b in zip(soup, self._exact, strict=True))
        return difference, sum(float(exact.square().sum()) for exact in self._exact)

    @torch.no_grad()
    def _updates(self, config: AdapterConfig, tensors: Tensors) -> list[Tensor]:
        module = from_tensors(config, self.shape, tensors).double()
        sites = [site for site in module.modules() if isinstance(site, Bottleneck)]
        for _ in sites[len(self._probes) :]:
            self._probes.append(torch.from_numpy(self._draw.standard_normal((PROBES, self.shape.hidden_size))))
        return [site(probes, torch.zeros_like(probes)) for site, probes in zip(sites, self._probes, strict=True)]


class Factored(Measured):
    """LoRA: the updates s B A themselves, by the Frobenius norm, through the QR of their stacked factors.

    ||B A||_F = ||R_B R_A^T||_F for B = Q_B R_B and A^T = Q_A R_A: the full matrix is never made, and nothing
    cancels before the norm is taken.
    """

    def __init__(self, shape: BaseShape, mixing: Mixing) -> None:
        super().__init__(shape, mixing)
        self._updates: dict[str, list[_Update]] = {}

    def add(self, config: AdapterConfig, tensors: Tensors, factor: float) -> None:
        """Keep the factors of every module, as they are stored."""
        for path, update in _updates(config, tensors, factor).items():
            self._updates.setdefault(path, []).append(update)

    def squares(self, config: AdapterConfig, tensors: Tensors) -> tuple[float, float]:
        """Over all modules."""
        difference = size = 0.0
        soup = _updates(config, tensors, 1.0)
        for path, updates in self._updates.items():
            up, down = _stacked(updates)
            found, its_down = _stacked([soup[path]])
            size += _squared_norm(up, down)
            if torch.equal(its_down, down):  # concatenated: half the work, and what is equal cancels to 0
                difference += _squared_norm(up - found, down)
            else:
                difference += _squared_norm(torch.cat([up, -found], 1), torch.cat([down, its_down]))
        return difference, size


class _Update(NamedTuple):
    """`factor` times B (outputs, rank) times A (rank, inputs)."""

    factor: float
    up: Tensor
    down: Tensor


def _updates(config: AdapterConfig, tensors: Tensors, factor: float) -> dict[str, _Update]:
    """`factor` times what a LoRA adds to each module's weights."""
    assert isinstance(config, LoraConfig)
    return {
        path: _Update(factor * config.scaling(module), tensors[PREFIX + path + LORA_B], tensors[PREFIX + path + LORA_A])
        for path, module in config.modules().items()
    }


def _stacked(updates: Sequence[_Update]) -> tuple[Tensor, Tensor]:
    """The factors (outputs, ranks) and (ranks, inputs) of a sum, in double precision."""
    return torch.cat([one.up.double() * one.factor for one in updates], 1), torch.cat(
        [one.down.double() for one in updates]
    )


def _squared_norm(up: Tensor, down: Tensor) -> float:
    """Squared Frobenius norm of up (outputs, rank) times down (rank, inputs)."""
    if not up.any():
        return 0.0
    left = torch.linalg.qr(up, mode="r").R
    right = torch.linalg.qr(down.T, mode="r").R
    return float((left @ right.T).square().sum())
