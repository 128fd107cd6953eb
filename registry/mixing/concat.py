"""The exact mixture as one adapter: bottlenecks or ranks side by side (docs/explanation/methods.md#mixing).

f(x) = scale sum_i w_i f_i(x) in every layer (with factors by layer, sum_i w_i v_il f_il(x)), whatever the ingredients
started from: the block-diagonal form of the sum
of their updates, as `cat` in PEFT (Mangrulkar et al., 2022), with the weights folded into the up-projections. How
tensors are put side by side is their structure's affair (`adapters.bottleneck_mixing`, `adapters.lora_mixing`);
`scale` multiplies what comes of it. One ingredient as it is at weight 1 and scale 1 is that adapter, bit for bit.
The result is the same on every machine, and fp32 whatever the ingredients are: it is made for exactness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import ValidationError
from torch import Tensor

from registry.adapters import entry_of
from registry.errors import Internal, InvalidRecipe
from registry.mixing.cast import cast_finite
from registry.mixing.compat import SoupIngredient, by_digest, listed, structure_reasons
from registry.spec import AdapterConfig, ConcatMixing, widths_together
from registry.spec.wording import said_of


def check(parts: Sequence[SoupIngredient], _mixing: ConcatMixing) -> list[str]:
    """Every reason why these cannot be concatenated; empty when they can.

    Reads tensors only where some have to be equal (Houlsby's trained LayerNorms), and nothing else stands against it.
    """
    reasons = structure_reasons(parts, may_differ=parts[0].config.folded)
    return reasons + _method_reasons(parts) or _tensor_reasons(parts)


def _method_reasons(parts: Sequence[SoupIngredient]) -> list[str]:
    others = [part for part in parts if not part.config.joinable and part.config.merged is None]
    if not others:
        return []
    what = f"{others[0].ref} is a {others[0].config.described}"
    return [f"Bottlenecks and LoRAs can be put side by side as one adapter, and {what}."]


def kind_of(config: AdapterConfig) -> object:
    """Equal for configurations that can be concatenated, as far as configurations say."""
    needed = sorted(type(config).model_fields.keys() - config.folded)
    return tuple((name, getattr(config, name)) for name in needed)


def _tensor_reasons(parts: Sequence[SoupIngredient]) -> list[str]:
    same = parts[0].config.same_tensors
    if len(parts) < 2 or same is None:
        return []
    what, named = same
    first = _tensors(parts[0], named)
    others = [part.ref for part in parts[1:] if not _equal(first, _tensors(part, named))]
    return [f"The {what} differ: those of {listed(others)} are not those of {parts[0].ref}."] if others else []


def _tensors(part: SoupIngredient, named: str) -> dict[str, Tensor]:
    return {name: tensor.to(torch.float32) for name, tensor in part.load().items() if named in name}


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def is_itself(parts: Sequence[SoupIngredient], mixing: ConcatMixing) -> bool:
    """One ingredient as it is: nothing to fold, nothing to round."""
    return len(parts) == 1 and mixing.scale == "1" and parts[0].layers is None


def width(parts: Sequence[SoupIngredient]) -> int:
    """The bottleneck, or the largest rank of any module, that concatenating these would give."""
    return max(added_up(parts).values(), default=0)


def too_wide(parts: Sequence[SoupIngredient], _mixing: ConcatMixing, max_width: int) -> list[str]:
    """One sentence with the numbers where the soup would exceed `max_width`; one adapter is as wide as it is."""
    if len(parts) < 2 or width(parts) <= max_width:
        return []
    own = ", ".join(str(part.config.width) for part in parts[:8]) + (", ..." if len(parts) > 8 else "")
    return [f"Concatenated they would be {width(parts)} wide ({own}), and max_width is {max_width}."]


def added_up(parts: Sequence[SoupIngredient]) -> dict[str, int]:
    """Widths by site, side by side."""
    return widths_together(part.config for part in parts)


def result(parts: Sequence[SoupIngredient], mixing: ConcatMixing) -> AdapterConfig:
    """The soup's structure: widths or ranks added up, scales folded into the weights, without masks.

    Raises InvalidRecipe where modules of so many different ranks are more than a LoRA can have.
    """
    return parts[0].config if is_itself(parts, mixing) else joined(parts, added_up(parts))


def joined(parts: Sequence[SoupIngredient], widths: Mapping[str, int]) -> AdapterConfig:
    """The structure of these side by side with these widths; raises InvalidRecipe where a LoRA cannot have them."""
    try:
        return by_digest(parts)[0].config.joined(widths)
    except ValidationError as error:
        raise InvalidRecipe(f"The LoRAs are too many for one: {said_of(error.errors()[0])}.", param="recipe") from None


def mix(parts: Sequence[SoupIngredient], mixing: ConcatMixing) -> dict[str, Tensor]:
    """The concatenated tensors, fp32; all ingredients are in memory at once, as their values are in the soup.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or a value leaves the range of fp32.
    """
    return dict(parts[0].load()) if is_itself(parts, mixing) else side_by_side(parts, mixing.scale)


def side_by_side(parts: Sequence[SoupIngredient], scale: str) -> dict[str, Tensor]:
    """The tensors of `joined` with all their widths, fp32, also of one ingredient; raises what `mix` does."""
    ordered = by_digest(parts)
    join = entry_of(ordered[0].config).join
    if join is None:
        raise Internal(f"Adapters of method {ordered[0].config.method!r} were to be put side by side.")
    factors = [part.factor(float(scale)) for part in ordered]
    mixed = join([part.config for part in ordered], [part.load() for part in ordered], factors)
    return cast_finite(mixed, torch.float32)
