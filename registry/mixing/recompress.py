"""The exact mixture made as narrow as one ingredient again (docs/explanation/mixing.md#recompress).

Of `concat`'s neurons or ranks the ones that say most of what it adds, site by site, with an up-projection fitted to
them: how is the structure's affair (`adapters.bottleneck_narrowing`, `adapters.lora_ranks`). It looks at tensors
alone, never at text, so that a soup is rebuilt from its recipe and holds nothing of any sample; `by_inputs` also looks
at second moments that were computed from the ingredients' own samples, and are named in the recipe. The result is fp32.
Where nothing has to be left out it is `concat`'s, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from registry.adapters import entry_of
from registry.adapters.lora import LORA_A, PREFIX
from registry.adapters.lora_ranks import Moments
from registry.adapters.moments import matrix_size, unpacked
from registry.errors import Internal
from registry.mixing import concat
from registry.mixing.cast import cast_finite
from registry.mixing.compat import SoupIngredient, by_digest, statistic_reasons
from registry.spec import AdapterConfig, ConcatMixing, RecompressMixing, StatisticKind

WIDEST = 1024
"""Neurons or ranks side by side that are looked at: time grows with their square, for a LoRA with their cube."""


def check(parts: Sequence[SoupIngredient], mixing: RecompressMixing) -> list[str]:
    """Every reason why these cannot be put side by side, as `concat` has them."""
    reasons = concat.check(parts, _exact(mixing))
    if not mixing.by_inputs:
        return reasons
    others = [part for part in parts if part.config.joinable and not part.config.is_update]
    if others and not reasons:
        what = f"{others[0].ref} is a {others[0].config.described}"
        reasons.append(f"'by_inputs' is of LoRAs, and {what}: leave it out.")
    return reasons + statistic_reasons(parts, "'by_inputs'")


def statistic(mixing: RecompressMixing) -> StatisticKind | None:
    """What has to be known of each ingredient: what its modules read, where the request asks for that."""
    return "inputs" if mixing.by_inputs else None


def too_wide(parts: Sequence[SoupIngredient], mixing: RecompressMixing, max_width: int) -> list[str]:
    """Why they are too many, or the soup wider than `max_width`; one adapter is as wide as it is."""
    together, widths = _widths(parts, mixing)
    wide, found = max(together.values(), default=0), max(widths.values(), default=0)
    if wide > WIDEST:
        return [f"Side by side they are {wide} wide, and 'recompress' takes at most {WIDEST}: leave out ingredients."]
    if found > max_width and len(parts) > 1:
        return [f"Recompressed they would be {found} wide, and max_width is {max_width}."]
    return []


def result(parts: Sequence[SoupIngredient], mixing: RecompressMixing) -> AdapterConfig:
    """The soup's structure: `concat`'s with these widths. Raises InvalidRecipe where that does."""
    together, widths = _widths(parts, mixing)
    return concat.result(parts, _exact(mixing)) if widths == together else concat.joined(parts, widths)


def mix(parts: Sequence[SoupIngredient], mixing: RecompressMixing) -> dict[str, Tensor]:
    """The tensors, fp32; all ingredients are in memory at once.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or a value leaves the range of fp32.
    """
    together, widths = _widths(parts, mixing)
    if widths == together:
        return concat.mix(parts, _exact(mixing))
    wide = concat.joined(parts, together)
    narrow = entry_of(wide).narrow
    if narrow is None:
        raise Internal(f"Adapters of method {wide.method!r} were to be made narrower.")
    exact = concat.side_by_side(parts, mixing.scale)
    read = _read_together(parts) if mixing.by_inputs else None
    return cast_finite(narrow(wide, exact, widths, mixing.seed, read), torch.float32)


def _read_together(parts: Sequence[SoupIngredient]) -> Moments:
    """By site: the second moments of what is read there over all ingredients' samples, by their weights.

    How large they are together changes nothing, so an ingredient that leaves a module alone is left out there.
    """
    known = [(part.measured(), part.factor(1.0)) for part in by_digest(parts)]

    def at(path: str) -> Tensor:
        name = PREFIX + path + LORA_A
        packed = sum(weight(path) * own[name].double() for own, weight in known if name in own)
        assert isinstance(packed, Tensor)  # one of them is on this module
        return unpacked(packed, matrix_size(len(packed)))

    return at


def _exact(mixing: RecompressMixing) -> ConcatMixing:
    return ConcatMixing(scale=mixing.scale)


def _widths(parts: Sequence[SoupIngredient], mixing: RecompressMixing) -> tuple[dict[str, int], dict[str, int]]:
    """By place: side by side, and what is asked for, or else the widest ingredient there; never more than the first."""
    own, together = [part.config.widths() for part in parts], concat.added_up(parts)
    return together, {
        place: min(wide, mixing.width or max(widths.get(place, 0) for widths in own))
        for place, wide in together.items()
    }
