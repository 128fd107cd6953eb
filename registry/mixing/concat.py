"""The exact mixture as one adapter: bottlenecks or ranks side by side (docs/explanation/mixing.md#concat).

f(x) = scale sum_i w_i f_i(x) in every layer (with factors by layer, sum_i w_i v_il f_il(x)), whatever the ingredients
started from: the block-diagonal form of the sum of their updates, as `cat` in PEFT (Mangrulkar et al., 2022), with the
weights and `scale` folded into the up-projections. `adapters.bottleneck_mixing` and `adapters.lora_mixing` put tensors
side by side. One ingredient alone at weight 1 and scale 1 is that adapter, bit for bit. The result is the same on every
machine, and fp32 whatever the ingredients are: it is made for exactness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from pydantic import ValidationError
from torch import Tensor

from registry.adapters import join_adapters
from registry.errors import InvalidRecipe
from registry.mixing.compat import SoupIngredient, by_digest, listed, shortened, structure_reasons
from registry.mixing.tensors import cast_finite
from registry.spec import (
    AdapterConfig,
    ConcatMixing,
    RecompressMixing,
    RegMeanMixing,
    TaskArithmeticMixing,
    widths_together,
)
from registry.spec.wording import describe_error

Exact = ConcatMixing | RecompressMixing | RegMeanMixing | TaskArithmeticMixing
"""Mixings that concatenate some or all structures; their scale is all that is read of them here."""


def check(ingredients: Sequence[SoupIngredient], _mixing: Exact) -> list[str]:
    """Every reason why these cannot be concatenated; empty when they can.

    Reads tensors only where some have to be equal (Houlsby's trained LayerNorms), and there is no other reason.
    """
    reasons = structure_reasons(ingredients, may_differ=ingredients[0].config.folded)
    return reasons + _method_reasons(ingredients) or _tensor_reasons(ingredients)


def _method_reasons(ingredients: Sequence[SoupIngredient]) -> list[str]:
    for ingredient in ingredients:
        if not ingredient.config.joinable and ingredient.config.merged is None:
            return [f"Bottlenecks and LoRAs can be put side by side as one adapter, and {ingredient.described}."]
    return []


def join_key(config: AdapterConfig) -> object:
    """Equal for configurations that can be concatenated, as far as configurations say."""
    names = sorted(type(config).model_fields.keys() - config.folded)
    return tuple((name, getattr(config, name)) for name in names)


def _tensor_reasons(ingredients: Sequence[SoupIngredient]) -> list[str]:
    same = ingredients[0].config.same_tensors
    if len(ingredients) < 2 or same is None:
        return []
    description, infix = same
    reference = _tensors(ingredients[0], infix)
    different = [
        ingredient.ref for ingredient in ingredients[1:] if not _is_equal(reference, _tensors(ingredient, infix))
    ]
    if not different:
        return []
    return [f"The {description} differ: those of {listed(different)} are not those of {ingredients[0].ref}."]


def _tensors(ingredient: SoupIngredient, infix: str) -> dict[str, Tensor]:
    return {name: tensor.to(torch.float32) for name, tensor in ingredient.load().items() if infix in name}


def _is_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def is_unchanged(ingredients: Sequence[SoupIngredient], mixing: Exact) -> bool:
    """Return True if the soup is its one ingredient: nothing to fold, nothing to round."""
    return len(ingredients) == 1 and mixing.scale == "1" and ingredients[0].layers is None


def width(ingredients: Sequence[SoupIngredient]) -> int:
    """The bottleneck, or the largest rank of any module, that concatenating these would give."""
    return max(total_widths(ingredients).values(), default=0)


def too_wide(ingredients: Sequence[SoupIngredient], _mixing: Exact, max_width: int) -> list[str]:
    """One sentence with the numbers where the soup would exceed `max_width`; one adapter alone never does."""
    if len(ingredients) < 2 or width(ingredients) <= max_width:
        return []
    widths = shortened([str(ingredient.config.width) for ingredient in ingredients])
    return [f"Concatenated they would be {width(ingredients)} wide ({widths}), and max_width is {max_width}."]


def total_widths(ingredients: Sequence[SoupIngredient]) -> dict[str, int]:
    """The widths of all ingredients added up, by site."""
    return widths_together(ingredient.config for ingredient in ingredients)


def result(ingredients: Sequence[SoupIngredient], mixing: Exact) -> AdapterConfig:
    """The soup's structure: widths or ranks added up, scales folded into the weights, without masks.

    Raises InvalidRecipe if the modules have more different ranks than a LoRA can have.
    """
    if is_unchanged(ingredients, mixing):
        return ingredients[0].config
    return joined(ingredients, total_widths(ingredients))


def joined(ingredients: Sequence[SoupIngredient], widths: Mapping[str, int]) -> AdapterConfig:
    """The structure of these side by side with these widths; raises InvalidRecipe where a LoRA cannot have them."""
    try:
        return by_digest(ingredients)[0].config.joined(widths)
    except ValidationError as error:
        raise InvalidRecipe(
            f"The LoRAs are too many for one: {describe_error(error.errors()[0])}.", param="recipe"
        ) from None


def mix(ingredients: Sequence[SoupIngredient], mixing: Exact) -> dict[str, Tensor]:
    """The concatenated tensors, fp32; all ingredients are in memory at once, as their values are in the soup.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or a value leaves the range of fp32.
    """
    if is_unchanged(ingredients, mixing):
        return dict(ingredients[0].load())
    return side_by_side(ingredients, mixing.scale)


def side_by_side(ingredients: Sequence[SoupIngredient], scale: str) -> dict[str, Tensor]:
    """The tensors of `joined` with all their widths, fp32, also of one ingredient; raises what `mix` does."""
    ordered = by_digest(ingredients)
    factors = [ingredient.factor(float(scale)) for ingredient in ordered]
    configs, loaded = [ingredient.config for ingredient in ordered], [ingredient.load() for ingredient in ordered]
    return cast_finite(join_adapters(configs, loaded, factors), torch.float32)
