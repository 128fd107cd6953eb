"""The names of mixtures: `acme/law*0.7+acme/style*0.5`, adapters with their weights."""

from __future__ import annotations

from collections.abc import Sequence

from registry.errors import InvalidName, TooLarge
from registry.spec import WeightedRef
from service.http.schemas.wire import MAX_MIXED_ADAPTERS


def is_mixture(name: str) -> bool:
    """Return True for the name of a mixture: no ref of one model contains these characters."""
    return "+" in name or "*" in name


def parse_mixture(name: str) -> tuple[WeightedRef, ...]:
    """The adapters and weights of a mixture's name; an adapter without a weight has 1.

    Raises InvalidName for a weight that is no number from 0 up, and TooLarge for too many adapters.
    """
    items = name.split("+")
    if len(items) > MAX_MIXED_ADAPTERS:
        raise TooLarge(f"'model' mixes {len(items)} adapters; at most {MAX_MIXED_ADAPTERS} are mixed.", param="model")
    refs = []
    for item in items:
        ref, has_weight, weight = item.partition("*")
        try:
            refs.append(WeightedRef(ref=ref.strip(), weight=float(weight) if has_weight else 1.0))
        except ValueError:  # of the number, or of the value
            raise InvalidName(
                f"'{item[:80]}' in 'model' is not valid: a mixture is written as "
                "team/law*0.7+team/style*0.5, with weights from 0 up.",
                param="model",
            ) from None
    return tuple(refs)


def mixture_name(refs: Sequence[WeightedRef]) -> str:
    """The name of a mixture."""
    return "+".join(f"{ref.ref}*{ref.weight:g}" for ref in refs)
