"""The names of mixtures: `acme/law*0.7+acme/style*0.5`, adapters with their weights."""

from __future__ import annotations

from collections.abc import Sequence

from registry.errors import InvalidName, InvalidParameter
from registry.spec import MAX_INGREDIENTS, canonical_decimal
from service.http.schemas.wire import MixedAdapter


def is_mixture(name: str) -> bool:
    """Return True for the name of a mixture: no ref of one model contains these characters."""
    return "+" in name or "*" in name


def parse_mixture(name: str, *, param: str = "model") -> tuple[MixedAdapter, ...]:
    """The adapters and weights of a mixture's name; an adapter without a weight has 1.

    Raises InvalidName for a weight that is no number from 0 to 1000, and InvalidParameter for too many adapters; the
    errors name `param`.
    """
    items = name.split("+")
    if len(items) > MAX_INGREDIENTS:
        message = f"'{param}' mixes {len(items)} adapters; at most {MAX_INGREDIENTS} are mixed."
        raise InvalidParameter(message, param=param)
    adapters = []
    for item in items:
        ref, has_weight, weight = item.partition("*")
        try:
            adapters.append(MixedAdapter(ref=ref.strip(), weight=float(weight) if has_weight else 1.0))
        except ValueError:  # of the number, or of the values
            raise InvalidName(
                f"'{item[:80]}' in '{param}' is not valid: a mixture is written as team/law*0.7+team/style*0.5, with "
                "weights from 0 to 1000.",
                param=param,
            ) from None
    return tuple(adapters)


def mixture_name(adapters: Sequence[MixedAdapter]) -> str:
    """The name of a mixture, which `parse_mixture` reads; weights have nine decimal places at most."""
    return "+".join(f"{adapter.ref}*{canonical_decimal(adapter.weight)}" for adapter in adapters)
