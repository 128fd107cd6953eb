"""Compress the exact mixture to the width of one ingredient (docs/explanation/mixing.md#recompress).

Keeps the neurons or ranks of `concat`'s soup, site by site, that explain most of its output, with an up-projection
fitted to them (`adapters.bottleneck_narrowing`, `adapters.lora_ranks`). Reads only tensors, never text, so that a soup
can be rebuilt from its recipe and contains nothing of a sample. `by_inputs` also reads second moments that were
computed from the ingredients' own samples and are named in the recipe. The result is fp32. Where nothing has to be
dropped it is `concat`'s, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from registry.adapters import entry_of
from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, PREFIX
from registry.adapters.mixture import Factor
from registry.adapters.moments import matrix_size, unpacked
from registry.mixing import concat
from registry.mixing.compat import SoupIngredient, by_digest, statistic_reasons
from registry.mixing.tensors import cast_finite
from registry.spec import AdapterConfig, RecompressMixing, StatisticKind

WIDEST = 1024
"""Most neurons or ranks that are compressed: time grows with their square, for a LoRA with their cube."""


def check(ingredients: Sequence[SoupIngredient], mixing: RecompressMixing) -> list[str]:
    """Every reason why these cannot be put side by side by `concat`, or have no second moments that are needed."""
    reasons = concat.check(ingredients, mixing)
    if not mixing.by_inputs:
        return reasons
    bottlenecks = [
        ingredient for ingredient in ingredients if ingredient.config.joinable and not ingredient.config.is_update
    ]
    if bottlenecks and not reasons:
        reasons.append(f"'by_inputs' is of LoRAs, and {bottlenecks[0].described}: leave it out.")
    return reasons + statistic_reasons(ingredients, "'by_inputs'")


def statistic_kind(mixing: RecompressMixing) -> StatisticKind | None:
    """The statistic needed of each ingredient: second moments of its modules' inputs for `by_inputs`, else None."""
    return "inputs" if mixing.by_inputs else None


def too_wide(ingredients: Sequence[SoupIngredient], mixing: RecompressMixing, max_width: int) -> list[str]:
    """One sentence where they are too many, or the soup exceeds `max_width`; one adapter alone never does."""
    joined, narrowed = _widths(ingredients, mixing)
    widest, width = max(joined.values(), default=0), max(narrowed.values(), default=0)
    if widest > WIDEST:
        return [f"Side by side they are {widest} wide, and 'recompress' takes at most {WIDEST}: leave out ingredients."]
    if width > max_width and len(ingredients) > 1:
        return [f"Recompressed they would be {width} wide, and max_width is {max_width}."]
    return []


def result(ingredients: Sequence[SoupIngredient], mixing: RecompressMixing) -> AdapterConfig:
    """The soup's structure: `concat`'s with smaller widths. Raises InvalidRecipe where that does."""
    joined, narrowed = _widths(ingredients, mixing)
    if narrowed == joined:
        return concat.result(ingredients, mixing)
    return concat.joined(ingredients, narrowed)


def mix(ingredients: Sequence[SoupIngredient], mixing: RecompressMixing) -> dict[str, Tensor]:
    """The tensors, fp32; all ingredients are in memory at once.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or a value leaves the range of fp32.
    """
    joined, narrowed = _widths(ingredients, mixing)
    if narrowed == joined:
        return concat.mix(ingredients, mixing)
    wide = concat.joined(ingredients, joined)
    narrow = entry_of(wide).narrow
    assert narrow is not None  # see `check`
    exact = concat.side_by_side(ingredients, mixing.scale)
    moments = None
    if mixing.by_inputs:
        statistics = [(ingredient.load_statistic(), ingredient.factor(1.0)) for ingredient in by_digest(ingredients)]
        moments = partial(_mean_moments, statistics)
    return cast_finite(narrow(wide, exact, narrowed, mixing.seed, moments), torch.float32)


def _mean_moments(statistics: Sequence[tuple[Tensors, Factor]], path: str) -> Tensor:
    """The weighted second moments (inputs, inputs) of what the module at `path` reads, over all ingredients' samples.

    Their scale changes nothing, so an ingredient that does not change the module is left out of the sum.
    """
    name = PREFIX + path + LORA_A
    packed = sum(factor(path) * moments[name].double() for moments, factor in statistics if name in moments)
    assert isinstance(packed, Tensor)  # one of them is on this module
    return unpacked(packed, matrix_size(len(packed)))


def _widths(ingredients: Sequence[SoupIngredient], mixing: RecompressMixing) -> tuple[dict[str, int], dict[str, int]]:
    """The widths by site, side by side and of the soup: the requested width or that of the widest ingredient."""
    widths = [ingredient.config.widths() for ingredient in ingredients]
    joined = concat.total_widths(ingredients)
    narrowed = {
        site: min(width, mixing.width or max(by_site.get(site, 0) for by_site in widths))
        for site, width in joined.items()
    }
    return joined, narrowed
