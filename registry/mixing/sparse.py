"""The one mask of a soup of pruned adapters, from those of its ingredients (docs/explanation/sparse.md).

Called by `average`, and by the report. Four rules; a dense ingredient keeps every entry:

- `union`: an entry is kept where any ingredient keeps it, so that nothing of the average is lost (the default);
- `intersect`: where all of them do;
- `first`: where the ingredient of the largest weight does, of equal weights that of the lowest digest: a recipe knows
  no other order;
- `reprune`: the mean number of entries is pruned again, those of the average that are smallest, over all projections
  or, where every pruned ingredient was pruned so, within each.
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
from registry.adapters.masks import highest, mask_of, pack, projections, unpack
from registry.errors import Incompatible
from registry.mixing.compat import SoupIngredient
from registry.spec import AdapterConfig, AverageMixing, MaskRule, Pruned, Recipe

DEFAULT: MaskRule = "union"
Masks = dict[str, Tensor]
"""bool by the name of a projection's weight, of its shape."""


def is_sparse(parts: Sequence[SoupIngredient]) -> bool:
    """Whether any ingredient is pruned."""
    return any(part.config.pruned_parts() for part in parts)


def masks_of(config: AdapterConfig, tensors: Tensors) -> Masks:
    """What an ingredient keeps of each projection; everything of one that is not pruned."""
    names = [name for some in projections(config, tensors).values() for name in some]
    return {
        name: unpack(tensors[mask_of(name)], tensors[name].shape)
        if mask_of(name) in tensors
        else torch.ones(tensors[name].shape, dtype=torch.bool)
        for name in names
    }


class OneMask:
    """The mask of a soup of `parts`, made of theirs one after the other: of many no more is held than of one.

    One ingredient alone keeps its own, whatever the rule.
    """

    def __init__(self, parts: Sequence[SoupIngredient], mixing: AverageMixing) -> None:
        self.rule: MaskRule = (mixing.masks or DEFAULT) if len(parts) > 1 else "union"
        self.config = parts[0].config.dense()
        self.scope: Literal["global", "layer"] = _scope(parts) if self.rule == "reprune" else "global"
        self._first = min(parts, key=lambda part: (-Decimal(part.weight), part.digest)).digest
        self._parts = len(parts)
        self._kept: Masks = {}
        self._left_out: Counter[str] = Counter()

    def add(self, part: SoupIngredient, tensors: Tensors) -> None:
        """Take an ingredient's masks into account; every one has to be added once."""
        for name, keep in masks_of(part.config, tensors).items():
            self._left_out[name] += int((~keep).sum())
            if name not in self._kept or (self.rule == "first" and part.digest == self._first):
                self._kept[name] = keep
            elif self.rule == "union":
                self._kept[name] |= keep
            elif self.rule == "intersect":
                self._kept[name] &= keep

    def projections(self) -> dict[str, list[str]]:
        """The weights that have masks, by the prefix of the part that is pruned."""
        return projections(self.config, self._kept)

    def entries(self, names: Sequence[str]) -> int:
        """How many entries these projections have."""
        return sum(self._kept[name].numel() for name in names)

    def masked(self, names: Sequence[str]) -> int:
        """How many of them the soup leaves out."""
        if self.rule == "reprune":
            return sum(self._mean_masked(group) for group in self._groups(names))
        return sum(int((~self._kept[name]).sum()) for name in names)

    def kept(self, names: Sequence[str], average: Mapping[str, Tensor]) -> Masks:
        """What the soup keeps of them; to prune again needs the average's values."""
        if self.rule != "reprune":
            return {name: self._kept[name] for name in names}
        kept: Masks = {}
        for group in self._groups(names):
            kept |= highest({name: average[name].abs() for name in group}, self._mean_masked(group))
        return kept

    def _groups(self, names: Sequence[str]) -> list[list[str]]:
        """Projections that are pruned again together."""
        return [[name] for name in names] if self.scope == "layer" else [list(names)]

    def _mean_masked(self, names: Sequence[str]) -> int:
        """The ingredients' mean number of entries left out, a whole one."""
        return round(Fraction(sum(self._left_out[name] for name in names), self._parts))


def soup_config(parts: Sequence[SoupIngredient], mixing: AverageMixing) -> AdapterConfig:
    """The configuration of the average of pruned ingredients, whose masks are read.

    Raises Incompatible where nothing would be kept.
    """
    mask = OneMask(parts, mixing)
    for part in parts:
        mask.add(part, part.load())
    pruned: dict[str, Pruned] = {}
    for prefix, names in mask.projections().items():
        entries, masked = mask.entries(names), mask.masked(names)
        if masked == entries:
            raise Incompatible(
                f"No entry of the projections is kept by all {len(parts)} ingredients: mix with masks 'union'.",
                param="masks",
            )
        if masked:
            pruned[prefix] = Pruned(score=mask.rule, sparsity=masked / entries, masked=masked, scope=mask.scope)
    return mask.config.with_pruned(pruned)


def put_on(average: Mapping[str, Tensor], mask: OneMask) -> dict[str, Tensor]:
    """The average with what the soup leaves out at zero, and its masks, if it leaves out anything."""
    found = dict(average)
    for names in mask.projections().values():
        if not mask.masked(names):
            continue
        for name, keep in mask.kept(names, average).items():
            found[name] = average[name].masked_fill(~keep, 0.0)
            found[mask_of(name)] = pack(keep)
    return found


def _scope(parts: Sequence[SoupIngredient]) -> Literal["global", "layer"]:
    scopes = {pruned.scope for part in parts for pruned in part.config.pruned_parts().values()}
    return "layer" if scopes == {"layer"} else "global"


# --- for people -----------------------------------------------------------------------------------


def notes(parts: Sequence[SoupIngredient], recipe: Recipe, config: AdapterConfig) -> tuple[str, ...]:
    """What became of the ingredients' masks, a sentence; nothing where none is pruned and no rule was asked for."""
    asked = recipe.mixing.masks
    if not is_sparse(parts):
        return (f"None of the ingredients is pruned: masks '{asked}' changed nothing.",) if asked else ()
    found = config.pruned_parts()
    if len(parts) == 1 and config == parts[0].config:
        return ()
    if not found:
        kept = "an ingredient keeps every entry" if isinstance(recipe.mixing, AverageMixing) else "no mask is kept"
        return (f"The soup is dense, though not all of its ingredients are: by {recipe.mixing.method} {kept}.",)
    told = ", ".join(f"{pruned.masked} entries ({pruned.sparsity:.1%})" for pruned in found.values())
    own = ", ".join(f"{_sparsity(part):.1%}" for part in parts[:8]) + (", ..." if len(parts) > 8 else "")
    return (f"Pruned are {told}, by masks '{asked or DEFAULT}' of ingredients pruned by {own}.",)


def _sparsity(part: SoupIngredient) -> float:
    """The share that an ingredient leaves out; of a union, of its first pruned member."""
    return next((pruned.sparsity for pruned in part.config.pruned_parts().values()), 0.0)
