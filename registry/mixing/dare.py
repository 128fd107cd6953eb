"""DARE (Yu et al., ICML 2024, https://arxiv.org/abs/2311.03099): drop at random, rescale, average.

theta = sum_i w_i m_i theta_i / p, where m_i keeps an entry of a projection with probability p = `density`, so that each
ingredient's expectation is unchanged. The masks are drawn by the recipe's `seed` and the ingredient's digest, so that
an adapter loses the same entries whatever it is mixed with. PEFT has it as `dare_linear`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from registry.mixing import entrywise
from registry.mixing.compat import SoupIngredient, by_digest
from registry.spec import DareMixing


def mix(ingredients: Sequence[SoupIngredient], mixing: DareMixing) -> dict[str, Tensor]:
    """The soup's tensors; raises InvalidRecipe where they are not finite."""
    draws = [generator(ingredient.digest, mixing.seed) for ingredient in by_digest(ingredients)]
    return entrywise.mix_entries(ingredients, mixing, partial(_drop, draws=draws, density=float(mixing.density)))


def _drop(
    values: Sequence[Tensor], weights: Sequence[Tensor], *, draws: Sequence[np.random.Generator], density: float
) -> Tensor:
    rescaled = [
        torch.where(torch.from_numpy(draw.random(value.shape) < density), value, 0.0) / density
        for value, draw in zip(values, draws, strict=True)
    ]
    return entrywise.weighted_sum(rescaled, weights)


def generator(digest: str, seed: int) -> np.random.Generator:
    """The generator of an ingredient's masks, projection after projection in canonical order."""
    return np.random.Generator(np.random.PCG64([seed, int(digest.removeprefix("sha256:"), 16)]))
