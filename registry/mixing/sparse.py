"""Make the mask of a soup of pruned adapters from those of its ingredients (docs/explanation/methods.md).

Called by `average`, and by the report. A dense ingredient keeps every entry. There are four rules:

- `union` keeps an entry that any ingredient keeps, so that nothing of the average is lost (the default);
- `intersect` keeps an entry that all ingredients keep;
- `first` keeps the entries of the ingredient with the largest weight, and of equal weights the lowest digest, because
  recipes have no other order;
- `reprune` masks the smallest entries of the average, as many as the ingredients mask on average: over all projections
  together, or within each where every pruned ingredient was pruned within each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from registry.adapters.loadable import Tensors
from registry.adapters.masks import keep_highest, mask_name, pack, projection_names, projections, unpack
from registry.errors import Incompatible
from registry.mixing.compat import SoupIngredient, shortened
from registry.spec import AdapterConfig, AverageMixing, MaskRule, Pruned, Recipe

DEFAULT: MaskRule = "union"
Masks = dict[str, Tensor]
"""bool by the name of a projection's weight, of its shape."""


def is_sparse(ingredients: Sequence[SoupIngredient]) -> bool:
    """Return True if any ingredient is pruned."""
    return any(ingredient.config.prunings() for ingredient in ingredients)


def masks_of(config: AdapterConfig, tensors: Tensors) -> Masks:
    """The entries that an ingredient keeps of each projection: all of one that is not pruned."""
    return {
        name: unpack(tensors[mask_name(name)], tensors[name].shape)
        if mask_name(name) in tensors
        else torch.ones(tensors[name].shape, dtype=torch.bool)
        for name in projection_names(config, tensors)
    }


class SoupMask:
    """The mask of a soup, made of its ingredients' masks one after the other: no more than one is in memory.

    One ingredient alone keeps its mask, whatever the rule.
    """

    def __init__(self, ingredients: Sequence[SoupIngredient], mixing: AverageMixing) -> None:
        self.rule: MaskRule = (mixing.masks or DEFAULT) if len(ingredients) > 1 else "union"
        self.config = ingredients[0].config.dense()
        self.scope: Literal["global", "layer"] = _scope(ingredients) if self.rule == "reprune" else "global"
        self._first = min((-Decimal(ingredient.weight), ingredient.digest) for ingredient in ingredients)[1]
        self._ingredients = len(ingredients)
        self._masks: Masks = {}
        self._masked: Counter[str] = Counter()

    def add(self, ingredient: SoupIngredient, tensors: Tensors) -> None:
        """Take an ingredient's masks into account; each has to be added once."""
        for name, mask in masks_of(ingredient.config, tensors).items():
            self._masked[name] += int((~mask).sum())
            if name not in self._masks or (self.rule == "first" and ingredient.digest == self._first):
                self._masks[name] = mask
            elif self.rule == "union":
                self._masks[name] |= mask
            elif self.rule == "intersect":
                self._masks[name] &= mask

    def projections(self) -> dict[str, list[str]]:
        """The weights that have masks, by the prefix of the member that is pruned."""
        return projections(self.config, self._masks)

    def count_entries(self, names: Sequence[str]) -> int:
        """The number of entries of these projections."""
        return sum(self._masks[name].numel() for name in names)

    def count_masked(self, names: Sequence[str]) -> int:
        """The number of entries of these projections that the soup does not keep."""
        if self.rule == "reprune":
            return sum(self._mean_masked(group) for group in self._groups(names))
        return sum(int((~self._masks[name]).sum()) for name in names)

    def masks(self, names: Sequence[str], average: Mapping[str, Tensor]) -> Masks:
        """The entries of these projections that the soup keeps; only `reprune` reads the average's values."""
        if self.rule != "reprune":
            return {name: self._masks[name] for name in names}
        masks: Masks = {}
        for group in self._groups(names):
            masks |= keep_highest({name: average[name].abs() for name in group}, self._mean_masked(group))
        return masks

    def _groups(self, names: Sequence[str]) -> list[list[str]]:
        """Projections that are pruned again together."""
        return [[name] for name in names] if self.scope == "layer" else [list(names)]

    def _mean_masked(self, names: Sequence[str]) -> int:
        """The ingredients' mean number of masked entries, rounded."""
        return round(Fraction(sum(self._masked[name] for name in names), self._ingredients))


def soup_config(ingredients: Sequence[SoupIngredient], mixing: AverageMixing) -> AdapterConfig:
    """The configuration of the average of pruned ingredients, whose masks are read.

    Raises Incompatible where nothing would be kept.
    """
    mask = SoupMask(ingredients, mixing)
    for ingredient in ingredients:
        mask.add(ingredient, ingredient.load())
    pruned: dict[str, Pruned] = {}
    for prefix, names in mask.projections().items():
        entries, masked = mask.count_entries(names), mask.count_masked(names)
        if masked == entries:
            raise Incompatible(
                f"No entry of the projections is kept by all {len(ingredients)} ingredients: mix with masks 'union'.",
                param="masks",
            )
        if masked:
            pruned[prefix] = Pruned(score=mask.rule, sparsity=masked / entries, masked=masked, scope=mask.scope)
    return mask.config.with_pruned(pruned)


def apply_mask(average: Mapping[str, Tensor], mask: SoupMask) -> dict[str, Tensor]:
    """The average with masked entries at zero, and with the soup's masks if any entry is masked."""
    soup = dict(average)
    for names in mask.projections().values():
        if not mask.count_masked(names):
            continue
        for name, keep in mask.masks(names, average).items():
            soup[name] = average[name].masked_fill(~keep, 0.0)
            soup[mask_name(name)] = pack(keep)
    return soup


def _scope(ingredients: Sequence[SoupIngredient]) -> Literal["global", "layer"]:
    scopes = {pruned.scope for ingredient in ingredients for pruned in ingredient.config.prunings().values()}
    return "layer" if scopes == {"layer"} else "global"


# --- the report -----------------------------------------------------------------------------------


def notes(ingredients: Sequence[SoupIngredient], recipe: Recipe, config: AdapterConfig) -> tuple[str, ...]:
    """A sentence on the masks of ingredients and soup; nothing where none is pruned and no rule was requested."""
    rule = recipe.mixing.masks
    if not is_sparse(ingredients):
        return (f"None of the ingredients is pruned: masks '{rule}' changed nothing.",) if rule else ()
    if len(ingredients) == 1 and config == ingredients[0].config:
        return ()
    soup_masks = config.prunings()
    if not soup_masks:
        reason = "an ingredient keeps every entry" if isinstance(recipe.mixing, AverageMixing) else "no mask is kept"
        return (f"The soup is dense, though not all of its ingredients are: by {recipe.mixing.method} {reason}.",)
    masked = ", ".join(f"{pruned.masked} entries ({pruned.sparsity:.1%})" for pruned in soup_masks.values())
    sparsities = shortened([f"{_sparsity(ingredient):.1%}" for ingredient in ingredients])
    return (f"Pruned are {masked}, by masks '{rule or DEFAULT}' of ingredients pruned by {sparsities}.",)


def _sparsity(ingredient: SoupIngredient) -> float:
    """The share of an ingredient's entries that is masked; of a union, of its first pruned member."""
    return next((pruned.sparsity for pruned in ingredient.config.prunings().values()), 0.0)
