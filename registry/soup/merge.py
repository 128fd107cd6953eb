"""The adapter of a bank of experts: the mean of their weights and biases (AdaMix, EMNLP 2022, section 3.3).

Has one ingredient, the bank, whatever its weight: of one it is all. Bit-identical on every machine, as `mean_of` says.
The merge costs what one expert costs and starts where the bank started, so it is mixed with other adapters like one
that was trained by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from registry.adapters.experts import merge_bank
from registry.adapters.weights import DTYPES
from registry.soup.compat import Part
from registry.soup.finite import cast_finite
from registry.spec import AdapterConfig, BankConfig, MergeMixing


def check(parts: Sequence[Part], _mixing: MergeMixing) -> list[str]:
    """Every reason why this is not one bank; no tensor is read."""
    reasons = [f"{part.ref} is no bank of experts but a {part.config.method}." for part in parts if not _is_bank(part)]
    if len(parts) > 1:
        banks = sum(_is_bank(part) for part in parts)
        reasons.append(f"A bank is merged by itself, and these are {len(parts)} adapters, {banks} of them banks.")
    return reasons


def _is_bank(part: Part) -> bool:
    return isinstance(part.config, BankConfig)


def result(parts: Sequence[Part], _mixing: MergeMixing) -> AdapterConfig:
    """The structure of one expert."""
    return bank_config(parts[0]).expert


def bank_config(part: Part) -> BankConfig:
    """The configuration of a part that `check` has found to be a bank."""
    assert isinstance(part.config, BankConfig)
    return part.config


def mix(parts: Sequence[Part], _mixing: MergeMixing) -> dict[str, Tensor]:
    """The merged tensors in the bank's dtype; raises InvalidRecipe where they are not finite."""
    bank = parts[0]
    return cast_finite(merge_bank(bank_config(bank), bank.load()), DTYPES[bank.dtype])
