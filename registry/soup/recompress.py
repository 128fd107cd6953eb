"""The exact mixture made as narrow as one ingredient again (docs/explanation/mixing.md#recompress).

Of `concat`'s neurons or ranks the ones that say most of what it adds, site by site, with an up-projection fitted to
them: how is the structure's affair (`adapters.bottleneck_narrowing`, `adapters.lora_narrowing`). It looks at tensors
alone, never at text, so that a soup is rebuilt from its recipe and holds nothing of any sample. The result is fp32 and
the same bytes on every machine. Where nothing has to be left out it is `concat`'s, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from registry.adapters import entry_of
from registry.errors import Internal
from registry.soup import concat
from registry.soup.cast import cast_finite
from registry.soup.compat import SoupPart
from registry.spec import AdapterConfig, ConcatMixing, RecompressMixing

WIDEST = 1024
"""Neurons or ranks side by side that are looked at: time grows with their square, for a LoRA with their cube."""


def check(parts: Sequence[SoupPart], mixing: RecompressMixing) -> list[str]:
    """Every reason why these cannot be put side by side, as `concat` has them."""
    return concat.check(parts, _exact(mixing))


def too_wide(parts: Sequence[SoupPart], mixing: RecompressMixing, max_width: int) -> list[str]:
    """Why they are too many, or the soup wider than `max_width`; one adapter is as wide as it is."""
    wide, found = concat.width(parts), max(_widths(parts, mixing).values(), default=0)
    if wide > WIDEST:
        return [f"Side by side they are {wide} wide, and 'recompress' takes at most {WIDEST}: leave out ingredients."]
    if found > max_width and len(parts) > 1:
        return [f"Recompressed they would be {found} wide, and max_width is {max_width}."]
    return []


def result(parts: Sequence[SoupPart], mixing: RecompressMixing) -> AdapterConfig:
    """The soup's structure: `concat`'s with these widths. Raises InvalidRecipe where that does."""
    if not _leaves_out(parts, mixing):
        return concat.result(parts, _exact(mixing))
    return concat.joined(parts, _widths(parts, mixing))


def mix(parts: Sequence[SoupPart], mixing: RecompressMixing) -> dict[str, Tensor]:
    """The tensors, fp32; all ingredients are in memory at once.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or a value leaves the range of fp32.
    """
    if not _leaves_out(parts, mixing):
        return concat.mix(parts, _exact(mixing))
    wide = concat.joined(parts, concat.added_up(parts))
    narrow = entry_of(wide).narrow
    if narrow is None:
        raise Internal(f"Adapters of method {wide.method!r} were to be made narrower.")
    exact = concat.side_by_side(parts, mixing.scale)
    return cast_finite(narrow(wide, exact, _widths(parts, mixing), mixing.seed), torch.float32)


def _exact(mixing: RecompressMixing) -> ConcatMixing:
    return ConcatMixing(scale=mixing.scale)


def _leaves_out(parts: Sequence[SoupPart], mixing: RecompressMixing) -> bool:
    """Whether any site becomes narrower than the ingredients side by side."""
    return _widths(parts, mixing) != concat.added_up(parts)


def _widths(parts: Sequence[SoupPart], mixing: RecompressMixing) -> dict[str, int]:
    """By place: what is asked for, or else the widest ingredient there; never more than they are side by side."""
    own = [part.config.widths() for part in parts]
    return {
        place: min(together, mixing.width or max(widths.get(place, 0) for widths in own))
        for place, together in concat.added_up(parts).items()
    }
