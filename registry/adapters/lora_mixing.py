"""Join and mix LoRAs exactly: several side by side as one, and the mean of their updates.

Side by side: A = [A_i], B = [f_i s_i B_i] with an ingredient's factor f_i and s_i = alpha_i / rank_i (rsLoRA:
/ sqrt(rank_i)); an ingredient adds nothing to modules it does not name. Used through the structure's entry in
`STRUCTURES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.adapters.mixture import Factor, Measured, constant_factor
from registry.spec import BaseShape, LoraConfig


def join_loras(
    configs: Sequence[LoraConfig], loaded: Sequence[Tensors], factors: Sequence[Factor]
) -> dict[str, Tensor]:
    """A in fp32 and B in double precision of every module that any ingredient has, ranks in the ingredients' order."""
    down: dict[str, list[Tensor]] = {}
    up: dict[str, list[Tensor]] = {}
    for config, tensors, factor in zip(configs, loaded, factors, strict=True):
        for path, module in config.modules().items():
            down.setdefault(path, []).append(tensors[PREFIX + path + LORA_A].to(torch.float32))
            scaled = tensors[PREFIX + path + LORA_B].to(torch.float64) * (factor(path) * config.scaling(module))
            up.setdefault(path, []).append(scaled)
    return {PREFIX + path + LORA_A: torch.cat(matrices) for path, matrices in down.items()} | {
        PREFIX + path + LORA_B: torch.cat(matrices, 1) for path, matrices in up.items()
    }


class LoraMixture(Measured):
    """The updates s B A, compared by the Frobenius norm through the QR of their stacked factors.

    ||B A||_F = ||R_B R_A^T||_F for B = Q_B R_B and A^T = Q_A R_A: the full matrix is never made, and nothing
    cancels before the norm is taken.
    """

    def __init__(self, _config: LoraConfig, _shape: BaseShape) -> None:
        self._updates: dict[str, list[_Update]] = {}

    def add(self, config: LoraConfig, tensors: Tensors, factor: Factor) -> None:
        """Add the update of every module, as its stored factors."""
        for path, update in _updates(config, tensors, factor).items():
            self._updates.setdefault(path, []).append(update)

    def squares(self, config: LoraConfig, tensors: Tensors) -> dict[str, tuple[float, float]]:
        """Squared norms by the paths of modules, as `Measured.squares` returns them."""
        squares = {}
        soup = _updates(config, tensors, constant_factor(1.0))
        for path, updates in self._updates.items():
            up, down = _stacked(updates)
            soup_up, soup_down = _stacked([soup[path]])
            if torch.equal(soup_down, down):  # concatenated: half the work, and equal factors cancel to 0
                difference = _squared_norm(up - soup_up, down)
            else:
                difference = _squared_norm(torch.cat([up, -soup_up], 1), torch.cat([down, soup_down]))
            squares[path] = difference, _squared_norm(up, down)
        return squares


class _Update(NamedTuple):
    """`factor` times B (outputs, rank) times A (rank, inputs)."""

    factor: float
    up: Tensor
    down: Tensor


def _updates(config: LoraConfig, tensors: Tensors, factor: Factor) -> dict[str, _Update]:
    """`factor` times a LoRA's update of each module, by path."""
    return {
        path: _Update(
            factor(path) * config.scaling(module), tensors[PREFIX + path + LORA_B], tensors[PREFIX + path + LORA_A]
        )
        for path, module in config.modules().items()
    }


def _stacked(updates: Sequence[_Update]) -> tuple[Tensor, Tensor]:
    """The factors (outputs, ranks) and (ranks, inputs) of a sum, in double precision."""
    up = torch.cat([update.up.double() * update.factor for update in updates], 1)
    return up, torch.cat([update.down.double() for update in updates])


def _squared_norm(up: Tensor, down: Tensor) -> float:
    """Squared Frobenius norm of up (outputs, rank) times down (rank, inputs)."""
    if not up.any():
        return 0.0
    up_factor, down_factor = torch.linalg.qr(up, mode="r").R, torch.linalg.qr(down.T, mode="r").R
    return float((up_factor @ down_factor.T).square().sum())
