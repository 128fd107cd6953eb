"""The adapter of a bank of experts: the mean of their weights and biases (AdaMix, EMNLP 2022, section 3.3).

Has one ingredient, the bank, whatever its weight: of one it is all. Bit-identical on every machine, as `mean_of` says.
The merge costs what one expert costs and starts where the bank started, so it is mixed with other adapters like one
that was trained by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from registry.adapters import entry_of
from registry.adapters.weights import DTYPES
from registry.mixing.cast import cast_finite
from registry.mixing.compat import SoupIngredient, layer_reasons
from registry.spec import AdapterConfig, MergeMixing


def check(parts: Sequence[SoupIngredient], _mixing: MergeMixing) -> list[str]:
    """Every reason why this is not one bank; no tensor is read."""
    others = [part for part in parts if part.config.merged is None]
    reasons = [f"{part.ref} is no bank of experts but a {part.config.method}." for part in others]
    if len(parts) > 1:
        banks = len(parts) - len(others)
        reasons.append(f"A bank is merged by itself, and these are {len(parts)} adapters, {banks} of them banks.")
    return reasons + layer_reasons(parts)


def result(parts: Sequence[SoupIngredient], _mixing: MergeMixing) -> AdapterConfig:
    """The structure of one expert."""
    merged = parts[0].config.merged
    assert merged is not None  # `check` has found a bank
    return merged


def mix(parts: Sequence[SoupIngredient], _mixing: MergeMixing) -> dict[str, Tensor]:
    """The merged tensors in the bank's dtype; raises InvalidRecipe where they are not finite."""
    bank = parts[0]
    merge = entry_of(bank.config).merge
    assert merge is not None
    return cast_finite(merge(bank.config, bank.load()), DTYPES[bank.dtype])
