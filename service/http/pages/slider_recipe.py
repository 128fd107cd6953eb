"""The mixture that the playground's sliders describe: adapters and their weights, in its form and in its URL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import Query
from pydantic import ValidationError

from registry.errors import InvalidParameter
from service.http import problems
from service.http.models.mixture_names import mixture_name
from service.http.schemas.wire import MixedAdapter

SLIDERS = 5
"""Adapters that have a slider."""
SEPARATOR = "*"
"""Between an adapter and its weight in a URL: `mix=acme/law@1*0.7`."""
MixQuery = Annotated[list[str] | None, Query(max_length=SLIDERS, description="Adapters and weights.")]


def ingredients_of_query(mix: Sequence[str] | None) -> list[MixedAdapter]:
    """The ingredients in a URL; raises InvalidParameter."""
    ingredients = []
    for text in mix or ():
        ref, _, weight = text.rpartition(SEPARATOR)
        ingredients.append(_parse_ingredient(ref, weight, f"mix={text}"))
    return ingredients


def ingredients_of_form(form: Mapping[str, str]) -> list[MixedAdapter]:
    """The ingredients in a form, without those whose adapter is blank; raises InvalidParameter."""
    rows = [(number, form.get(f"mix-{number}", "").strip()) for number in range(1, SLIDERS + 1)]
    return [
        _parse_ingredient(ref, form.get(f"weight-{number}", "").strip() or "0", f"weight-{number}")
        for number, ref in rows
        if ref
    ]


def _parse_ingredient(ref: str, weight: str, source: str) -> MixedAdapter:
    """An adapter with its weight.

    Raises InvalidParameter for a name or a weight that no mixture accepts; the message quotes `source`.
    """
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not ref or not value >= 0:
        raise InvalidParameter(f"{source[:80]!r} is not an adapter with a weight of zero or more.", param="mix")
    try:
        return MixedAdapter(ref=ref, weight=value)
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None


def model_of(ingredients: Sequence[MixedAdapter]) -> str:
    """The name of the model that the sliders describe; raises InvalidParameter if all weights are zero."""
    weighted = [item for item in ingredients if item.weight > 0]
    if not weighted:
        raise InvalidParameter("Name an adapter and give it a weight above zero.", param="mix-1")
    return weighted[0].ref if len(weighted) == 1 else mixture_name(weighted)
