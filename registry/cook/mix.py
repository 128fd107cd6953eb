"""Mixing: the adapters of a recipe become tensors with a report, or the bytes of the same recipe cooked before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from registry.soup.compat import Part
from registry.spec import AdapterConfig, MergeMixing, MixReport, Recipe


@dataclass(frozen=True)
class Mixed:
    """A finished mixture: recipe, tensors and stored bytes; `cached` when it was cooked before."""

    parts: tuple[Part, ...]
    recipe: Recipe
    config: AdapterConfig
    tensors: Mapping[str, Tensor]
    data: bytes
    digest: str
    report: MixReport
    dtype: str
    cached: bool

    @property
    def is_single(self) -> bool:
        """One ingredient at weight 1 is that adapter, not a soup."""
        return len(self.parts) == 1 and self.recipe.mixing.scale == "1"

    @property
    def is_merge(self) -> bool:
        """The adapter of a bank of experts."""
        return isinstance(self.recipe.mixing, MergeMixing)
