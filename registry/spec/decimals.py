"""Canonical decimals: the numbers of recipes as text, equal for equal values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

DECIMAL_UNIT = Decimal("0.000000001")
"""Numbers of recipes are rounded to multiples of it."""
WEIGHT_UNITS = 10**9
"""Weights are integers divided by this, and sum to 1."""


def canonical_decimal(value: object) -> str:
    """The shortest plain decimal of a number, with at most nine places; raises ValueError for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        raise ValueError("must be a number")
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
    except InvalidOperation:
        raise ValueError("must be a number") from None
    if not number.is_finite() or number.copy_abs() > 1000:  # abs() computes, which overflows
        raise ValueError("must be a finite number of at most 1000")
    plain = format(number.quantize(DECIMAL_UNIT).normalize(), "f")
    return "0" if plain == "-0" else plain


def _up_to_one(value: str) -> str:
    if not 0 < Decimal(value) <= 1:
        raise ValueError("must be more than 0 and at most 1")
    return value


UpToOne = Annotated[
    str,
    BeforeValidator(canonical_decimal),
    AfterValidator(_up_to_one),
    WithJsonSchema({"type": ["number", "string"]}),
]
"""A share or a rate: more than 0 and at most 1."""


def canonical_weights(weights: Sequence[float | Decimal]) -> list[str]:
    """Non-negative weights, normalised to nine decimal places that sum to exactly 1.

    The units are allocated by largest remainder, ties to the earlier entry. Raises ValueError where weights are
    negative, not finite or all zero.
    """
    exact = [Decimal(repr(w)) if isinstance(w, float) else Decimal(w) for w in weights]
    if not exact or any(not w.is_finite() or w < 0 for w in exact) or sum(exact) <= 0:
        raise ValueError("weights must be finite, not negative, and not all zero")
    total = sum(exact)
    units = [w / total * WEIGHT_UNITS for w in exact]
    floors = [int(u) for u in units]
    by_remainder = sorted(range(len(units)), key=lambda i: (floors[i] - units[i], i))
    for i in by_remainder[: WEIGHT_UNITS - sum(floors)]:
        floors[i] += 1
    return [format((Decimal(n) / WEIGHT_UNITS).normalize(), "f") for n in floors]


def weights_by_digest(weights: Mapping[str, float]) -> dict[str, str]:
    """Canonical weights of ingredients by digest, whatever their order."""
    ordered = sorted(weights)
    return dict(zip(ordered, canonical_weights([weights[digest] for digest in ordered]), strict=True))
