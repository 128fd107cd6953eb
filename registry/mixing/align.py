"""Averaging after neurons have been matched (Git Re-Basin: Ainsworth et al., ICLR 2023).

Bottlenecks of different initialisations have their neurons in different places: those of every ingredient are brought
into the order of the one of the largest weight (of equal weights the lowest digest), and then averaged with the
weights. How neurons are matched is the structure's affair (`adapters.bottleneck_mixing`). As wide as one ingredient,
and fp32. One ingredient at scale 1 is that adapter, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import torch
from torch import Tensor

from registry.adapters import entry_of
from registry.adapters.weights import scale_output
from registry.errors import Internal
from registry.mixing.cast import cast_finite
from registry.mixing.compat import SoupIngredient, by_digest, layer_reasons, structure_reasons
from registry.spec import AdapterConfig, AlignMixing

WIDEST = 2048
"""Neurons that are matched: time grows with their cube."""


def check(parts: Sequence[SoupIngredient], _mixing: AlignMixing) -> list[str]:
    """Every reason why these cannot be aligned; empty when they can. No tensor is read."""
    reasons = structure_reasons(parts, may_differ=parts[0].config.folded - {"bottleneck"})
    others = [part for part in parts if part.config.merged is None and entry_of(part.config).align is None]
    if others:
        what = f"{others[0].ref} is a {others[0].config.described}"
        reasons.append(f"Neurons of bottlenecks can be matched, and {what}: mix by another method.")
    wide = [part for part in parts if part.config.width > WIDEST]
    if wide and not others:
        reasons.append(f"{wide[0].ref} is {wide[0].config.width} wide, and at most {WIDEST} neurons are matched.")
    return reasons + layer_reasons(parts)


def result(parts: Sequence[SoupIngredient], mixing: AlignMixing) -> AdapterConfig:
    """The soup's structure: that of each ingredient, its scale in the tensors and without masks."""
    first = by_digest(parts)[0].config
    return first if _is_itself(parts, mixing) else first.joined(first.widths())


def mix(parts: Sequence[SoupIngredient], mixing: AlignMixing) -> dict[str, Tensor]:
    """The soup's tensors, fp32; two ingredients at a time are in memory, and each is read once.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or a value leaves the range of fp32.
    """
    if _is_itself(parts, mixing):
        return dict(parts[0].load())
    align = entry_of(parts[0].config).align
    if align is None:
        raise Internal(f"Adapters of method {parts[0].config.method!r} were to be aligned.")
    ordered = sorted(by_digest(parts), key=lambda part: -Decimal(part.weight))
    reference: dict[str, Tensor] | None = None
    total: dict[str, Tensor] = {}
    for part in ordered:
        found = align(part.config, cast_finite(part.load(), torch.float32), reference)
        reference = reference or found
        for name, tensor in found.items():
            own = tensor * float(part.weight)
            total[name] = own if name not in total else total[name] + own
    soup = cast_finite(total, torch.float32)
    return soup if mixing.scale == "1" else scale_output(soup, parts[0].config, float(mixing.scale))


def _is_itself(parts: Sequence[SoupIngredient], mixing: AlignMixing) -> bool:
    return len(parts) == 1 and mixing.scale == "1"
