"""The recipe that the playground's sliders write: adapters and their weights, as its form and its address have them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import Query
from pydantic import ValidationError

from registry.errors import InvalidParameter
from registry.names import temporary_name
from registry.spec import HandRecipe, WeightedRef
from service.http import problems
from service.http.schemas.soups import SoupRequest
from service.http.schemas.wire import Wire

MOST_PARTS = 5
"""Adapters that have a slider."""
TIMES = "*"
"""Between an adapter and its weight in an address: `mix=acme/law@1*0.7`."""
Written = Annotated[list[str] | None, Query(max_length=MOST_PARTS, description="Adapters and weights.")]


class Part(Wire):
    """An adapter and its weight; weights are shares once the recipe is cooked, whatever they sum to."""

    ref: str
    weight: float

    def __str__(self) -> str:
        return f"{self.ref}{TIMES}{self.weight:g}"


def parts_of_query(written: Sequence[str] | None) -> list[Part]:
    """The parts that an address names; raises InvalidParameter."""
    split = [one.rpartition(TIMES) for one in written or ()]
    return [_part(ref, weight, f"mix={one}") for one, (ref, _, weight) in zip(written or (), split, strict=True)]


def parts_of_form(form: Mapping[str, str]) -> list[Part]:
    """The parts that a form names, without those whose adapter is empty; raises InvalidParameter."""
    named = [(form.get(f"mix-{n}", "").strip(), form.get(f"weight-{n}", "").strip()) for n in range(1, MOST_PARTS + 1)]
    return [_part(ref, weight or "0", f"weight-{n}") for n, (ref, weight) in enumerate(named, 1) if ref]


def _part(ref: str, weight: str, where: str) -> Part:
    try:
        value = float(weight)
    except ValueError:
        value = math.nan
    if not ref or not 0 <= value < math.inf:
        raise InvalidParameter(f"{where[:80]!r} is no adapter with a weight of zero or more.", param="mix")
    return Part(ref=ref, weight=value)


def recipe_of(parts: Sequence[Part], namespace: str) -> SoupRequest:
    """What cooks these, under a name that nobody else has; raises InvalidParameter where nothing has a weight."""
    try:
        mixed = [WeightedRef(ref=one.ref, weight=one.weight) for one in parts if one.weight > 0]
    except ValidationError as error:
        raise problems.from_validation(error.errors()) from None
    if not mixed:
        raise InvalidParameter("Name an adapter and give it a weight above zero.", param="mix-1")
    recipe = HandRecipe(ingredients=tuple(mixed))
    return SoupRequest(recipe=recipe, name=f"{namespace}/{temporary_name()}", verify=False)
