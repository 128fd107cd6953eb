"""Merge a bank of experts into one adapter: the mean of their weights and biases (AdaMix, EMNLP 2022, section 3.3).

The only ingredient is the bank, whatever its weight. Bit-identical on every machine (`experts.mean_of`). The merge
costs what one expert costs and starts where the bank started, so it is mixed with other adapters like one that was
trained by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from registry.adapters import entry_of
from registry.adapters.weights import DTYPES
from registry.mixing.compat import SoupIngredient, layer_reasons
from registry.mixing.tensors import cast_finite
from registry.spec import AdapterConfig, MergeMixing


def check(ingredients: Sequence[SoupIngredient], _mixing: MergeMixing) -> list[str]:
    """Every reason why this is not one bank; no tensor is read."""
    plain = [ingredient for ingredient in ingredients if ingredient.config.merged is None]
    reasons = [f"{ingredient.ref} is no bank of experts but a {ingredient.config.method}." for ingredient in plain]
    if len(ingredients) > 1:
        banks = len(ingredients) - len(plain)
        reasons.append(f"A bank is merged by itself, and these are {len(ingredients)} adapters, {banks} of them banks.")
    return reasons + layer_reasons(ingredients)


def result(ingredients: Sequence[SoupIngredient], _mixing: MergeMixing) -> AdapterConfig:
    """The structure of one expert."""
    merged = ingredients[0].config.merged
    assert merged is not None  # `check` has found a bank
    return merged


def mix(ingredients: Sequence[SoupIngredient], _mixing: MergeMixing) -> dict[str, Tensor]:
    """The merged tensors in the bank's dtype; raises InvalidRecipe where they are not finite."""
    bank = ingredients[0]
    merge = entry_of(bank.config).merge
    assert merge is not None
    return cast_finite(merge(bank.config, bank.load()), DTYPES[bank.dtype])
