"""Average after neurons have been matched (Git Re-Basin: Ainsworth et al., ICLR 2023).

Bottlenecks of different initialisations order their neurons differently. The neurons of every ingredient are brought
into the order of the ingredient with the largest weight (of equal weights the lowest digest), and then averaged with
the weights. `adapters.bottleneck_mixing` matches the neurons. The soup is as wide as one ingredient, and fp32. One
ingredient at scale 1 is that adapter, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import torch
from torch import Tensor

from registry.adapters import entry_of
from registry.adapters.weights import scale_output
from registry.mixing.compat import SoupIngredient, by_digest, layer_reasons, structure_reasons
from registry.mixing.tensors import add_to, cast_finite
from registry.spec import AdapterConfig, AlignMixing

WIDEST = 2048
"""Most neurons that are matched: time grows with their cube."""


def check(ingredients: Sequence[SoupIngredient], _mixing: AlignMixing) -> list[str]:
    """Every reason why these cannot be aligned; empty when they can. No tensor is read."""
    reasons = structure_reasons(ingredients, may_differ=ingredients[0].config.folded - {"bottleneck"})
    unaligned = [
        ingredient
        for ingredient in ingredients
        if ingredient.config.merged is None and entry_of(ingredient.config).align is None
    ]
    if unaligned:
        reasons.append(f"Neurons of bottlenecks can be matched, and {unaligned[0].described}: mix by another method.")
    wide = [ingredient for ingredient in ingredients if ingredient.config.width > WIDEST]
    if wide and not unaligned:
        reasons.append(f"{wide[0].ref} is {wide[0].config.width} wide, and at most {WIDEST} neurons are matched.")
    return reasons + layer_reasons(ingredients)


def result(ingredients: Sequence[SoupIngredient], mixing: AlignMixing) -> AdapterConfig:
    """The soup's structure: that of each ingredient, its scale folded into the tensors and without masks."""
    first = by_digest(ingredients)[0].config
    return first if _is_unchanged(ingredients, mixing) else first.joined(first.widths())


def mix(ingredients: Sequence[SoupIngredient], mixing: AlignMixing) -> dict[str, Tensor]:
    """The soup's tensors, fp32; two ingredients at a time are in memory, and each is read once.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or a value leaves the range of fp32.
    """
    if _is_unchanged(ingredients, mixing):
        return dict(ingredients[0].load())
    align = entry_of(ingredients[0].config).align
    assert align is not None  # see `check`
    ordered = sorted(by_digest(ingredients), key=lambda ingredient: -Decimal(ingredient.weight))
    reference: dict[str, Tensor] | None = None
    total: dict[str, Tensor] = {}
    for ingredient in ordered:
        aligned = align(ingredient.config, cast_finite(ingredient.load(), torch.float32), reference)
        reference = reference or aligned
        for name, tensor in aligned.items():
            add_to(total, name, tensor * float(ingredient.weight))
    soup = cast_finite(total, torch.float32)
    return soup if mixing.scale == "1" else scale_output(soup, ingredients[0].config, float(mixing.scale))


def _is_unchanged(ingredients: Sequence[SoupIngredient], mixing: AlignMixing) -> bool:
    return len(ingredients) == 1 and mixing.scale == "1"
