"""The one mask of a soup of pruned adapters, from those of its ingredients (METHODS section 4).

Called by `average`, and by the report. Four rules; a dense ingredient keeps every entry:

- `union`: an entry is kept where any ingredient keeps it, so that nothing of the average is lost (the default);
- `intersect`: where all of them do;
- `first`: where the ingredient of the largest weight does, of equal weights that of the lowest digest: a recipe knows
  no other order;
- `reprune`: the mean number of entries is pruned again, those of the average that are smallest, over all projections
  or, where every ingredient was pruned so, within each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from registry.adapters.masks import (
    dense,
    highest,
    mask_of,
    pack,
    projections,
    pruned_members,
    unpack,
    with_pruned,
)
from registry.errors import Incompatible
from registry.soup.compat import Part, Tensors
from registry.spec import AdapterConfig, AverageMixing, MaskRule, Pruned, Recipe

DEFAULT: MaskRule = "union"
Masks = dict[str, Tensor]
"""bool by the name of a projection's weight, of its shape."""


def is_sparse(parts: Sequence[Part]) -> bool:
    """Whether any ingredient is pruned."""
    return any(pruned_members(part.config) for part in parts)


def masks_of(config: AdapterConfig, tensors: Tensors) -> Masks:
    """What an ingredient keeps of each projection; everything of one that is not pruned."""
    names = [name for some in projections(config, tensors).values() for name in some]
    return {
        name: unpack(tensors[mask_of(name)], tensors[name].shape)
        if mask_of(name) in tensors
        else torch.ones(tensors[name].shape, dtype=torch.bool)
        for name in names
    }


def soup_config(parts: Sequence[Part], mixing: AverageMixing) -> AdapterConfig:
    """The configuration of the average of pruned ingredients, whose masks are read.

    Raises Incompatible where nothing would be kept.
    """
    masks = [masks_of(part.config, part.load()) for part in parts]
    rule = mixing.masks or DEFAULT
    config = dense(parts[0].config)
    pruned: dict[str, Pruned] = {}
    for prefix, names in projections(config, masks[0]).items():
        entries, masked = sum(masks[0][name].numel() for name in names), _masked(parts, names, masks, rule)
        if masked == entries:
            raise Incompatible(
                f"No entry of the projections is kept by all {len(parts)} ingredients: mix with masks 'union'.",
                param="masks",
            )
        if masked:
            scope = _scope(parts) if rule == "reprune" else "global"
            pruned[prefix] = Pruned(score=rule, sparsity=masked / entries, masked=masked, scope=scope)
    return with_pruned(config, pruned)


def put_on(
    average: Mapping[str, Tensor], parts: Sequence[Part], masks: Sequence[Masks], mixing: AverageMixing
) -> dict[str, Tensor]:
    """The average with what the soup leaves out at zero, and its masks, if it leaves out anything.

    `masks` are those of `parts`, in their order. One ingredient alone keeps its own, whatever the rule.
    """
    rule = (mixing.masks or DEFAULT) if len(parts) > 1 else "union"
    found = dict(average)
    for names in projections(dense(parts[0].config), masks[0]).values():
        if not _masked(parts, names, masks, rule):
            continue
        for name, keep in _kept(parts, names, masks, rule, average).items():
            found[name] = average[name].masked_fill(~keep, 0.0)
            found[mask_of(name)] = pack(keep)
    return found


def _masked(parts: Sequence[Part], names: Sequence[str], masks: Sequence[Masks], rule: MaskRule) -> int:
    """How many entries of these projections the soup leaves out."""
    if rule == "reprune":
        return sum(_mean_masked(group, masks) for group in _groups(parts, names))
    return sum(int((~_combined(parts, name, masks, rule)).sum()) for name in names)


def _kept(
    parts: Sequence[Part],
    names: Sequence[str],
    masks: Sequence[Masks],
    rule: MaskRule,
    average: Mapping[str, Tensor],
) -> Masks:
    if rule != "reprune":
        return {name: _combined(parts, name, masks, rule) for name in names}
    kept: Masks = {}
    for group in _groups(parts, names):
        kept |= highest({name: average[name].abs() for name in group}, _mean_masked(group, masks))
    return kept


def _combined(parts: Sequence[Part], name: str, masks: Sequence[Masks], rule: MaskRule) -> Tensor:
    """The mask of one projection where it needs no values."""
    if rule == "first":
        heaviest = min(range(len(parts)), key=lambda i: (-Decimal(parts[i].weight), parts[i].digest))
        return masks[heaviest][name]
    every = torch.stack([one[name] for one in masks])
    return every.any(0) if rule == "union" else every.all(0)


def _groups(parts: Sequence[Part], names: Sequence[str]) -> list[list[str]]:
    """Projections that are pruned again together."""
    return [[name] for name in names] if _scope(parts) == "layer" else [list(names)]


def _scope(parts: Sequence[Part]) -> Literal["global", "layer"]:
    scopes = {pruned.scope for part in parts for pruned in pruned_members(part.config).values()}
    return "layer" if scopes == {"layer"} else "global"


def _mean_masked(names: Sequence[str], masks: Sequence[Masks]) -> int:
    """The ingredients' mean number of entries left out, a whole one."""
    return round(Fraction(sum(int((~one[name]).sum()) for one in masks for name in names), len(masks)))


# --- for people -----------------------------------------------------------------------------------


def notes(parts: Sequence[Part], recipe: Recipe, config: AdapterConfig) -> tuple[str, ...]:
    """What became of the ingredients' masks, a sentence; nothing where none is pruned and no rule was asked for."""
    asked = recipe.mixing.masks if isinstance(recipe.mixing, AverageMixing) else None
    if not is_sparse(parts):
        return (f"None of the ingredients is pruned: masks '{asked}' changed nothing.",) if asked else ()
    found = pruned_members(config)
    if len(parts) == 1 and config == parts[0].config:
        return ()
    if not found:
        kept = "an ingredient keeps every entry" if isinstance(recipe.mixing, AverageMixing) else "no mask is kept"
        return (f"The soup is dense, though not all of its ingredients are: by {recipe.mixing.method} {kept}.",)
    told = ", ".join(f"{pruned.masked} entries ({pruned.sparsity:.1%})" for pruned in found.values())
    own = ", ".join(f"{_sparsity(part):.1%}" for part in parts[:8]) + (", ..." if len(parts) > 8 else "")
    return (f"Pruned are {told}, by masks '{asked or DEFAULT}' of ingredients pruned by {own}.",)


def _sparsity(part: Part) -> float:
    """The share that an ingredient leaves out; of a union, of its first pruned member."""
    return next((pruned.sparsity for pruned in pruned_members(part.config).values()), 0.0)
